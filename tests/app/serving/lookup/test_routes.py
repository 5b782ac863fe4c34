from springtide_client.keys import hash_string

USER, ITEM = 0, 1


def test_a_row_is_given_with_its_status_and_count(world):
    world.log.start_epoch()
    text = hash_string(b"a/b")
    number = world.log.publish({(USER, 5): [1, 2, 3, 4], (ITEM, text): [4, 3, 2, 1]}, strings=[(ITEM, "a/b")])
    client = world.serve()
    world.served(client, number)
    answer = client.get("/v1/embeddings/user_id/5")
    document = answer.json()
    assert document["last_seen_ms"] > 0
    assert {name: document[name] for name in ("feature", "id", "status", "vector", "count", "version")} == {
        "feature": "user_id",
        "id": 5,
        "status": "known",
        "vector": [1, 2, 3, 4],
        "count": 1,
        "version": number,
    }
    assert answer.headers["x-springtide-version"] == str(number)
    assert int(answer.headers["x-springtide-staleness-ms"]) >= 0
    for url in ("/v1/embeddings/item_id?id=a/b", "/v1/embeddings/last_items?id=a%2Fb", "/v1/embeddings/item_id/a/b"):
        assert client.get(url).json()["vector"] == [4, 3, 2, 1], url
    absent = client.get("/v1/embeddings/user_id/6")
    assert absent.status_code == 404
    assert absent.json()["status"] == "unknown"
    assert absent.json()["error"]["code"] == "unknown"
    assert absent.headers["x-springtide-version"] == str(number)
    number = world.log.publish(forgotten=[(USER, 5)])
    world.served(client, number)
    assert client.get("/v1/embeddings/user_id/5").json()["status"] == "forgotten"
    nobody = client.get("/v1/embeddings/nobody/5")
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (404, "no_such_feature")
    assert client.post("/v1/embeddings/nobody", json={"ids": []}).json()["error"]["code"] == "no_such_feature"


def test_neighbors_are_shown_by_their_strings(world):
    world.log.start_epoch()
    names = ["here", "near", "far"]
    ids = {name: hash_string(name.encode()) for name in names}
    world.log.publish(
        {(ITEM, ids["here"]): [1, 0, 0, 0], (ITEM, ids["far"]): [-1, 0, 0, 0], (USER, 4): [1, 0, 0, 0]},
        strings=[(ITEM, "here"), (ITEM, "far")],
    )
    world.log.write_base()
    number = world.log.publish({(ITEM, ids["near"]): [1, 0.1, 0, 0], (ITEM, 7): [0, 1, 0, 0]}, strings=[(ITEM, "near")])
    client = world.serve()
    world.served(client, number)
    answer = client.get("/v1/embeddings/item_id/here/neighbors?k=3").json()
    assert [neighbor["id"] for neighbor in answer["neighbors"]] == ["near", 7, "far"]
    assert answer["version"] == number
    number = world.log.publish(forgotten=[(ITEM, ids["far"])])
    world.served(client, number)
    answer = client.get("/v1/embeddings/item_id/here/neighbors?metric=dot").json()
    assert [neighbor["id"] for neighbor in answer["neighbors"]] == ["near", 7]
    assert client.get("/v1/embeddings/item_id/far/neighbors").json()["status"] == "forgotten"
    assert client.get("/v1/embeddings/item_id/here/neighbors?metric=warmth").status_code == 422
    assert client.get("/v1/embeddings/item_id/here/neighbors?k=0").json()["error"]["code"] == "invalid"
