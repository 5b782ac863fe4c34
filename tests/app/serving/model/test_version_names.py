"""Routes take versions by pin and time, and a server may serve one version only."""

from datetime import UTC, datetime

import pytest

from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.read.index import LogIndex
from springtide_client.format.records import version_name
from springtide_client.log.directory import LogDirectory


def test_a_version_has_the_same_names_as_on_the_command_line(world) -> None:
    world.log.start_epoch()
    numbers = [world.log.publish(samples_trained=count) for count in range(5)]
    client = world.serve()
    world.served(client, numbers[-1])
    pin = pin_version(world.log.path, str(numbers[1]), "good")
    listed = client.get("/v1/versions?limit=1").json()["pins"]
    assert listed == [{"name": "good", "version": numbers[1], "created_ms": pin.created_ms}]
    created = LogIndex(LogDirectory(world.log.path)).meta(numbers[-1]).created_ms
    second = datetime.fromtimestamp(created / 1000 + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, number in {"good": numbers[1], version_name(numbers[2]): numbers[2], f"@{second}": numbers[-1]}.items():
        one = client.get(f"/v1/versions/{name}")
        assert one.json()["version"] == number, one.text
        assert one.json()["pins"] == (["good"] if number == numbers[1] else [])
        snapshot = client.get("/v1/snapshot", params={"version": name, "rows": "none"})
        assert snapshot.headers["x-springtide-version"] == str(number)
    before = client.get("/v1/versions", params={"before": "good"}).json()["versions"]
    assert before[0]["version"] == numbers[0]


@pytest.mark.parametrize(("name", "status"), [("@noon", 422), ("nobody", 410), ("@1999-01-01", 410), ("1.77", 410)])
def test_a_name_of_no_version_is_a_clear_error(world, name: str, status: int) -> None:
    world.log.start_epoch()
    number = world.log.publish(samples_trained=1)
    client = world.serve()
    world.served(client, number)
    for response in (client.get(f"/v1/versions/{name}"), client.get("/v1/snapshot", params={"version": name})):
        assert response.status_code == status, response.text
        assert "version" in response.json()["error"]["message"]


def test_a_server_of_one_version_does_not_follow_the_log(world) -> None:
    world.log.start_epoch()
    numbers = [world.log.publish(samples_trained=count) for count in range(3)]
    client = world.serve(version=numbers[1])
    world.served(client, numbers[1])
    live = world.serve()
    newest = world.log.publish(samples_trained=9)
    world.served(live, newest)
    assert client.get("/v1/versions/latest").json()["version"] == numbers[1]
    assert client.get("/v1/status").json()["version"] == numbers[1]
    for path in (f"/v1/log?after={numbers[1]}", "/v1/bases/latest"):
        refused = client.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "fixed_version")
