import threading

from tests.support.waiting import wait_until


def test_versions_are_listed_and_waited_for(world):
    world.log.start_epoch()
    base = world.log.number
    numbers = [world.log.publish(samples_trained=count) for count in range(5)]
    client = world.serve()
    world.served(client, numbers[-1])
    page = client.get("/v1/versions?limit=3")
    assert [entry["version"] for entry in page.json()["versions"]] == numbers[:1:-1]
    rest = client.get(f"/v1/versions?limit=9&before={page.json()['next_before']}").json()
    assert [entry["version"] for entry in rest["versions"]][:2] == [numbers[1], numbers[0]]
    assert rest["next_before"] is None
    one = client.get(f"/v1/versions/{numbers[1]}")
    assert one.json()["samples_trained"] == 1
    assert one.json()["name"] == "1.2"
    assert one.headers["etag"] == f'"{one.json()["checksum"]}"'
    assert client.get(f"/v1/versions/{numbers[2]}").json()["parent"] == one.json()["checksum"]
    again = client.get(f"/v1/versions/{numbers[1]}", headers={"if-none-match": one.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/v1/versions/7").status_code == 410
    assert client.get("/v1/versions/latest").json()["version"] == numbers[-1]
    assert client.get(f"/v1/versions/latest?after={base}").json()["version"] == numbers[-1]
    assert client.get(f"/v1/versions/latest?after={numbers[-1]}").status_code == 204
    assert client.get(f"/v1/versions/latest?after={numbers[-1]}&wait_seconds=0.05").status_code == 204
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(client.get(f"/v1/versions/latest?after={numbers[-1]}&wait_seconds=20"))
    )
    asking.start()
    wait_until(lambda: "springtide_open_streams 1" in client.get("/metrics").text)
    number = world.log.publish()
    asking.join()
    assert answers[0].json()["version"] == number


def test_the_first_base_is_the_first_version(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    assert client.get("/v1/versions/latest").json()["version"] == world.log.number
