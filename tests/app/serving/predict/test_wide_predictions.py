"""Servers and HotModel predict the same with a wide part, version after version; a snapshot has all of it."""

import numpy as np
import pytest

from springtide_client.explore import Policy, rank, scores_of
from springtide_client.format.tensors import decode_tensors
from springtide_client.hot_model import HotModel
from tests.app.serving.conftest import World
from tests.support.waiting import wait_until
from tests.support.wide_log import WideLog


@pytest.fixture
def wide_world(tmp_path):
    log = WideLog(tmp_path / "wide-log", crosses_table=True, wall_clock=True)
    made = World(log.log)
    yield log, made
    made.close()


def test_servers_and_hot_models_give_the_same_bits_through_many_versions(wide_world) -> None:
    log, world = wide_world
    log.learn(20)
    number = log.publish()
    client = world.serve()
    with HotModel(str(client.base_url).rstrip("/")) as over_http, HotModel(world.log.path) as local:
        for _ in range(4):
            instances = [log.instance() for _ in range(5)]
            world.served(client, number)
            for model in (over_http, local):
                wait_until(lambda model=model, number=number: model.version == number)
            answer = client.post("/v1/predict", json={"instances": instances})
            assert answer.json()["version"] == number
            assert over_http.predict(instances) == local.predict(instances)
            served = [[one[label] for label in ("click", "order")] for one in answer.json()["predictions"]]
            ours = [[one[label] for label in ("click", "order")] for one in local.predict(instances)]
            np.testing.assert_array_equal(np.array(served, np.float32), np.array(ours, np.float32))
            log.learn(10)
            number = log.publish()
    context = {"context": {"user_id": 1, "age": 7.0}, "candidates": [{"item_id": 1}, {"item_id": 2, "genres": [3]}]}
    whole = {"instances": [{**context["context"], **own} for own in context["candidates"]]}
    world.served(client, number)
    by_context = client.post("/v1/predict", json=context).json()["predictions"]
    assert by_context == client.post("/v1/predict", json=whole).json()["predictions"]


def test_rankings_are_computed_again_from_hot_models_predictions(wide_world) -> None:
    log, world = wide_world
    log.learn(20)
    number = log.publish()
    client = world.serve(explore={"policy": "softmax", "places": 5})
    world.served(client, number)
    with HotModel(world.log.path) as model:
        assert model.version == number
        for n in range(20):
            candidates = [log.instance() for _ in range(9)]
            answer = client.post("/v1/rank", json={"candidates": candidates, "request_id": f"r{n}"}).json()
            scores_N = scores_of([prediction["click"] for prediction in model.predict(candidates)])
            ranking = rank(scores_N, f"r{n}", number, Policy(**answer["policy"]))
            assert answer["order"] == ranking.order_N.tolist()
            assert [item["propensity"] for item in answer["items"][:5]] == ranking.propensities_P.tolist()


def test_a_snapshot_has_the_wide_part_and_its_rows(wide_world) -> None:
    log, world = wide_world
    log.learn(20)
    number = log.publish()
    client = world.serve()
    world.served(client, number)
    tensors, _ = decode_tensors(client.get("/v1/snapshot").content)
    keys = list(zip(tensors["rows.feature"].tolist(), tensors["rows.id"].tolist(), strict=True))
    assert set(keys) == {key for key in log.log.rows if key[0] < 32767}
    for key, numbers in zip(keys, tensors["rows.wide"], strict=True):
        np.testing.assert_array_equal(numbers, log.log.wide[key].astype(np.float32))
    assert len(tensors["crosses/rows.id"]) == len(log.oracle.cross_rows) > 0
    np.testing.assert_array_equal(tensors["dense.wide.gates_LTB"], log.oracle.a)
