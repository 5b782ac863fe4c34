"""POST /v1/rank over a real server: what it answers, what anybody can compute again, what it refuses."""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from springtide.app.serving.config import ExploreConfig
from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.predict.ranking import RankBody, rank_candidates
from springtide_client.explore import Policy, expected_reward, first_probabilities, rank, scores_of
from springtide_client.hot_model import HotModel
from tests.support.waiting import wait_until

USER, ITEM = 0, 1
CONTEXT = {"user_id": 1, "age": 30}
CANDIDATES = [{"item_id": item, "genres": [item % 3]} for item in range(7)]
SETTINGS = {
    "greedy": {},
    "epsilon": {"policy": "epsilon", "epsilon": 0.4, "places": 3},
    "softmax": {"policy": "softmax", "temperature": 0.5, "places": 2, "policies": ["softmax", "greedy", "epsilon"]},
    "order": {"policy": "softmax", "label": "order"},
}


def publish(world) -> int:
    """A version in which items differ."""
    made = np.random.default_rng(1)
    rows = {(ITEM, item): made.normal(0, 2, 4).tolist() for item in range(6)}
    return world.log.publish({(USER, 1): [1, 2, 3, 4], **rows})


def asked(request_id: str | None = None, **more):
    body = {"context": CONTEXT, "candidates": CANDIDATES, **more}
    return body if request_id is None else {**body, "request_id": request_id}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_answer_is_computed_again_bit_by_bit_from_request_id_and_version(world, name) -> None:
    world.log.start_epoch()
    settings = ExploreConfig.of(SETTINGS[name])
    client = world.serve(explore=SETTINGS[name])
    explored = 0
    with world_model(world) as model:
        for _ in range(2):  # versions
            number = publish(world)
            world.served(client, number)
            wait_until(lambda number=number: model.version == number)
            predictions = model.predict([CONTEXT | candidate for candidate in CANDIDATES])
            served = client.post("/v1/predict", json={"context": CONTEXT, "candidates": CANDIDATES}).json()
            assert served == {"predictions": predictions, "version": number}
            for n in range(20):
                response = client.post("/v1/rank", json=asked(f"request {n}"))
                answer = response.json()
                assert response.headers["x-springtide-version"] == str(answer["version"]) == str(number)
                assert response.headers["x-springtide-rows"] == "known=13, unknown=8"
                assert response.headers["x-springtide-missing"] == "last_items=7"
                label = answer["label"]
                probabilities = [one[label] for one in predictions]
                scores_N = scores_of(probabilities)
                policy = Policy(**answer["policy"])
                ranking = rank(scores_N, answer["request_id"], answer["version"], policy)
                order = ranking.order_N.tolist()
                assert answer["order"] == [item["index"] for item in answer["items"]] == order
                assert [item["probability"] for item in answer["items"]] == [probabilities[place] for place in order]
                assert [item["score"] for item in answer["items"]] == scores_N[order].tolist()
                propensities = [item["propensity"] for item in answer["items"] if "propensity" in item]
                assert propensities == ranking.propensities_P.tolist()
                assert list(answer["targets"]) == list(settings.policies)
                for target, found in answer["targets"].items():
                    chances_N = first_probabilities(scores_N, settings.named(target))
                    assert found["probability"] == chances_N[order[0]]
                    assert found["value"] == expected_reward(chances_N, probabilities)
                assert client.post("/v1/rank", json=asked(f"request {n}")).json() == answer
                explored += order[0] != np.argmax(scores_N)
                by_score = sorted(range(7), key=lambda place: -scores_N[place])
                assert order[policy.places :] == [place for place in by_score if place not in order[: policy.places]]
    assert (explored > 0) == (name != "greedy")
    assert f'springtide_rankings_total{{policy="{settings.policy}"}} 80' in client.get("/metrics").text


def world_model(world) -> HotModel:
    publish(world)
    return HotModel(world.log.path)


def test_greedy_is_the_default_and_sorts_by_the_first_label(world) -> None:
    world.log.start_epoch()
    client = world.serve()
    world.served(client, publish(world))
    predictions = client.post("/v1/predict", json={"context": CONTEXT, "candidates": CANDIDATES}).json()["predictions"]
    by_click = sorted(range(7), key=lambda place: (-predictions[place]["click"], place))
    answer = client.post("/v1/rank", json=asked()).json()
    assert answer["order"] == by_click
    assert answer["label"] == "click"
    assert answer["policy"] == {"name": "greedy", "epsilon": 0.1, "temperature": 1.0, "places": 1}
    assert [item.get("propensity") for item in answer["items"]] == [1.0] + [None] * 6
    best = predictions[by_click[0]]["click"]
    assert answer["targets"] == {"greedy": {"probability": 1.0, "value": best}}


def test_a_request_without_an_id_gets_one_and_k_cuts_the_list_only(world) -> None:
    world.log.start_epoch()
    client = world.serve(explore=SETTINGS["softmax"])
    world.served(client, publish(world))
    answers = [client.post("/v1/rank", json=asked()).json() for _ in range(40)]
    assert len({answer["request_id"] for answer in answers}) == 40
    assert len({tuple(answer["order"]) for answer in answers}) > 1
    for answer in answers[:5]:
        cut = client.post("/v1/rank", json=asked(answer["request_id"], k=1)).json()
        assert cut["order"] == answer["order"][:1]
        assert cut["items"] == answer["items"][:1]
        assert cut["targets"] == answer["targets"]


def test_served_first_places_are_as_frequent_as_their_propensities(world) -> None:
    world.log.start_epoch()
    client = world.serve(explore={"policy": "softmax", "temperature": 2.0})
    world.served(client, publish(world))
    answers = [client.post("/v1/rank", json=asked(f"{n}", k=1)).json() for n in range(2_000)]
    counts = Counter(answer["order"][0] for answer in answers)
    propensities = {answer["order"][0]: answer["items"][0]["propensity"] for answer in answers}
    expected = {candidate: 2_000 * propensity for candidate, propensity in propensities.items()}
    left = 2_000 - sum(expected.values())  # never drawn
    statistic = sum((counts[candidate] - number) ** 2 / number for candidate, number in expected.items()) + left
    freedom = len(expected)
    assert (statistic - freedom) / math.sqrt(2 * freedom) < 4


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ({"candidates": []}, 422, "invalid", "at least one candidate"),
        ({"candidates": [{}] * 9}, 413, "too_many_instances", "send the best 8 of them at most"),
        ({"candidates": [{}, 5]}, 422, "wrong_type", 'send {"request_id"'),
        ({"candidates": [{}, {"age": "old"}]}, 422, "wrong_type", "correct or remove this instance"),
        ({"candidates": [{}], "context": {"age": "old"}}, 422, "wrong_type", "correct or remove this context"),
        ({"candidates": [{}], "k": 2}, 422, "invalid", "send a k from 1 to the number of candidates, 1"),
        ({"candidates": [{}], "k": 0}, 422, "invalid", "send a k from 1"),
        ({"candidates": [{}], "k": "1"}, 400, "bad_request", 'send {"request_id"'),
        ({"candidates": [{}], "request_id": 17}, 400, "bad_request", 'send {"request_id": "r-17"'),
        ({"candidates": [{}], "request_id": ""}, 422, "invalid", "send a string of 1 to 256 characters"),
        ({"candidates": [{}], "request_id": "x" * 257}, 422, "invalid", "send a string of 1 to 256 characters"),
        ({"candidates": [{}], "policy": "softmax"}, 400, "bad_request", 'send {"request_id"'),
        ({"candidates": [{}], "max_staleness_ms": -1}, 400, "bad_request", "0 or more"),
        ({"instances": [{}]}, 400, "bad_request", 'send {"request_id"'),
        ({}, 400, "bad_request", 'send {"request_id"'),
        ([], 400, "bad_request", 'send {"request_id"'),
    ],
)
def test_a_request_that_cannot_be_ranked_is_told_what_to_do(ranked, body, status, code, says) -> None:
    answer = ranked.post("/v1/rank", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert says in error["hint"]


def test_answers_under_load_are_those_of_a_request_alone(world) -> None:
    """Other requests in the same call of the model would change the last bits of predictions."""
    world.log.start_epoch()
    client = world.serve(explore=SETTINGS["softmax"])
    world.served(client, publish(world))
    alone = [client.post("/v1/rank", json=asked(f"{n}")).json() for n in range(8)]
    with ThreadPoolExecutor(16) as pool:
        predicted = [pool.submit(client.post, "/v1/predict", json={"instances": CANDIDATES[:5]}) for _ in range(40)]
        ranked = [pool.submit(client.post, "/v1/rank", json=asked(f"{n % 8}")) for n in range(80)]
        assert [one.result().json() for one in ranked] == alone * 10
        assert {one.result().status_code for one in predicted} == {200}


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    from tests.app.serving.conftest import World, new_log

    world = World(new_log(tmp_path_factory.mktemp("ranked") / "log"))
    world.log.start_epoch()
    client = world.serve(max_instances=8)
    world.served(client, world.log.number)
    yield client
    world.close()


def test_a_label_that_the_model_does_not_have_is_told(world) -> None:
    world.log.start_epoch()
    client = world.serve(explore={"label": "purchase"})
    world.served(client, world.log.number)
    answer = client.post("/v1/rank", json=asked())
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert "label = 'purchase' is no label of this model" in error["message"]
    assert "set it to one of click, order" in error["message"]
    assert "restart" in error["hint"]


def test_preconditions_hold_for_rankings(world) -> None:
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    later = {"X-Springtide-Min-Version": str(world.log.number + 1)}
    assert client.post("/v1/rank", json=asked(), headers=later).json()["error"]["code"] == "version_not_reached"


def test_a_prediction_that_is_not_a_number_is_refused_with_its_index() -> None:
    request = RankBody([{}, {}], request_id="r")
    with pytest.raises(ApiError, match="candidate 1 is predicted as NaN") as caught:
        rank_candidates(request, 1, "click", np.array([0.5, np.nan], np.float32), ExploreConfig())
    assert (caught.value.status, caught.value.details) == (422, {"index": 1})
    assert "roll back" in caught.value.hint


def test_probabilities_of_0_and_1_can_be_ranked() -> None:
    request = RankBody([{}] * 3, request_id="r")
    for policy in ("greedy", "epsilon", "softmax"):
        made = rank_candidates(request, 1, "click", np.array([0, 1, 0.5], np.float32), ExploreConfig(policy=policy))
        assert sorted(made.order) == [0, 1, 2]
        assert "NaN" not in msgspec.json.encode(made).decode()
        assert b"null" not in msgspec.json.encode(made)
