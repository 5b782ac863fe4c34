"""Every route answers for a feature of any table, with the width of its rows."""

import numpy as np

from springtide_client.format.tensors import decode_tensors
from springtide_client.hot_model import HotModel

USER, ITEM = 0, 1


def raw(client, feature: str, ids: list[int]):
    headers = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
    response = client.post(f"/v1/embeddings/{feature}", content=np.array(ids, "<i8").tobytes(), headers=headers)
    dim = int(response.headers["x-springtide-dim"])
    rows = np.frombuffer(response.content[: 4 * dim * len(ids)], "<f4").reshape(len(ids), dim)
    return rows.tolist(), list(response.content[4 * dim * len(ids) :])


def test_rows_of_any_width_are_served(world) -> None:
    world.log.tables = {"dim2": (2, [ITEM])}
    world.log.start_epoch()
    world.log.publish({(USER, 1): [1, 2, 3, 4], (ITEM, 1): [5, 6], (ITEM, 2): [5, 7], (ITEM, 3): [-5, 6]})
    world.log.write_base()
    number = world.log.publish({(ITEM, 2): [6, 6]}, forgotten=[(ITEM, 3)])
    client = world.serve()
    world.served(client, number)
    for _ in range(2):  # the second time by the fast path
        rows, status = raw(client, "item_id", [1, 2])
        assert (rows, status) == ([[5.0, 6.0], [6.0, 6.0]], [0, 0])
        rows, status = raw(client, "user_id", [1])
        assert (rows, status) == ([[1.0, 2.0, 3.0, 4.0]], [0])
    posted = client.post("/v1/embeddings/item_id", json={"ids": [2, 3, 4]}).json()
    assert posted["vectors"][0] == [6.0, 6.0]
    assert posted["status"] == ["known", "forgotten", "unknown"]
    one = client.get("/v1/embeddings/item_id/1").json()
    assert (one["vector"], one["count"]) == ([5.0, 6.0], 1)
    near = client.get("/v1/embeddings/item_id/1/neighbors?metric=euclidean").json()["neighbors"]
    assert [found["id"] for found in near] == [2]
    instances = [{"user_id": 1, "item_id": 2}, {"user_id": 5, "item_id": 3}]
    predicted = client.post("/v1/predict", json={"instances": instances}).json()["predictions"]
    url = str(client.base_url).rstrip("/")
    with HotModel(url) as over_http, HotModel(world.log.path) as local:
        for model in (over_http, local):
            assert model.lookup("item_id", [1])[0].tolist() == [[5.0, 6.0]]
            assert model.lookup("user_id", [[1]])[0].shape == (1, 1, 4)
            assert model.predict(instances) == predicted
    snapshot, _ = decode_tensors(client.get("/v1/snapshot").content)
    assert dict(zip(snapshot["dim2/rows.id"].tolist(), snapshot["dim2/rows.value"].tolist(), strict=True)) == {
        1: [5.0, 6.0],
        2: [6.0, 6.0],
    }
    assert snapshot["rows.id"].tolist() == [1]
