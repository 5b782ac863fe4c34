import msgspec
import numpy as np

from springtide_client.keys import hash_string

DIM, USER, ITEM = 4, 0, 1


def test_many_rows_in_json_raw_bytes_and_msgpack(world):
    world.log.start_epoch()
    number = world.log.publish({(USER, 1): [1, 2, 3, 4], (USER, 2): [5, 6, 7, 8]}, forgotten=[(USER, 9)])
    client = world.serve()
    world.served(client, number)
    answer = client.post("/v1/embeddings/user_id", json={"ids": [2, "1", 3, 9], "max_staleness_ms": 1e9})
    assert answer.json() == {
        "feature": "user_id",
        "version": number,
        "dim": DIM,
        "ids": [2, "1", 3, 9],
        "status": ["known", "known", "unknown", "forgotten"],
        "vectors": [[5, 6, 7, 8], [1, 2, 3, 4], None, None],
    }
    ids = np.array([1, 3, 9, 2] * 800, "<i8")  # more than are looked up in the event loop
    raw = client.post(
        "/v1/embeddings/user_id", content=ids.tobytes(), headers={"content-type": "application/octet-stream"}
    )
    assert raw.headers["x-springtide-dim"] == str(DIM)
    assert raw.headers["x-springtide-version"] == str(number)
    rows = np.frombuffer(raw.content[: 4 * DIM * len(ids)], "<f4").reshape(-1, DIM)
    assert raw.content[4 * DIM * len(ids) :] == bytes([0, 1, 3, 0] * 800)
    assert rows[3].tolist() == [5, 6, 7, 8]
    assert np.isnan(rows[1]).all()
    packed = client.post(
        "/v1/embeddings/user_id",
        content=msgspec.msgpack.encode({"ids": [1]}),
        headers={"content-type": "application/msgpack", "accept": "application/octet-stream;dtype=float16"},
    )
    assert packed.content == np.array([1, 2, 3, 4], "<f2").tobytes() + b"\0"
    assert packed.headers["content-type"] == "application/octet-stream;dtype=float16"


def test_raw_ids_are_refused_for_a_feature_of_strings(world):
    world.log.start_epoch()
    number = world.log.publish({(ITEM, hash_string(b"x")): [1, 1, 1, 1]}, strings=[(ITEM, "x")])
    client = world.serve()
    world.served(client, number)
    raw = {"content-type": "application/octet-stream"}
    assert client.post("/v1/embeddings/item_id", content=b"\0" * 8, headers=raw).status_code == 415
    assert client.post("/v1/embeddings/last_items", content=b"\0" * 8, headers=raw).status_code == 415
    assert client.post("/v1/embeddings/user_id", content=b"\0" * 8, headers=raw).status_code == 200
    world.log.write_base()
    fresh = world.serve()
    world.served(fresh, number)
    assert fresh.post("/v1/embeddings/item_id", content=b"\0" * 8, headers=raw).status_code == 415
    assert fresh.get("/v1/embeddings/item_id/x").json()["vector"] == [1, 1, 1, 1]
