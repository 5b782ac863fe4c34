import re
import threading

import pytest

from tests.app.serving.conftest import World
from tests.app.serving.retrieve.retrieval_log import RetrievalLog
from tests.support.waiting import wait_until

USER = {"user_id": 3, "last_items": [1, 2, 3], "age": 40}


class Asked:
    """A log, its server, and a client."""

    def __init__(self, log: RetrievalLog) -> None:
        self.log, self.world = log, World(log)
        self.client = self.world.serve()

    def ask(self, **body):
        """Return the response, once it comes from the newest version."""
        newest = {"X-Springtide-Min-Version": str(self.log.number)}
        body = {"user": USER} | body
        wait_until(lambda: self.client.post("/v1/retrieve", json=body, headers=newest).status_code != 503)
        return self.client.post("/v1/retrieve", json=body, headers=newest)

    def found(self, **body) -> dict[int, float]:
        response = self.ask(**body)
        assert response.status_code == 200, response.text
        return {item["id"]: item["score"] for item in response.json()["items"]}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    with RetrievalLog(tmp_path_factory.mktemp("retrieve")) as log:
        for number in range(3):
            log.learn(number)
        made = Asked(log)
        yield made
        made.world.close()


def best(scores: dict[int, float], k: int) -> list[int]:
    return sorted(scores, key=lambda item: (-scores[item], item))[:k]


def check(found: list[dict], scores: dict[int, float], k: int) -> None:
    """The items are the k best, in order; equal scores may differ in their last bits."""
    assert len(found) == min(k, len(scores))
    for item in found:
        assert item["score"] == pytest.approx(scores[item["id"]], abs=1e-4)
    expected = [scores[item] for item in best(scores, k)]
    assert [item["score"] for item in found] == pytest.approx(expected, abs=1e-4)


def test_retrieve_equals_an_exact_oracle_at_one_version(asked):
    for user in (USER, {"user_id": "never seen"}, {}):
        response = asked.ask(user=user, k=20)
        document = response.json()
        assert response.headers["x-springtide-version"] == str(document["version"]) == str(asked.log.number)
        check(document["items"], asked.log.scores(document["version"], user), 20)


def test_k_beyond_the_items_gives_all_of_them(asked):
    assert set(asked.found(k=1_000)) == set(asked.log.scores(asked.log.number, USER))
    assert len(asked.found()) == 10


def test_a_new_item_is_found_in_the_next_version_and_a_forgotten_one_is_gone(asked):
    number = asked.log.learn(100, first_item=900, num_items=5)
    check(asked.ask(k=1_000).json()["items"], asked.log.scores(number, USER), 1_000)
    assert set(range(900, 905)) <= set(asked.found(k=1_000))
    asked.log.forget_item(902)
    found = asked.found(k=1_000)
    assert 902 not in found
    assert set(found) >= {900, 901, 903, 904}


def test_filters_and_excluded_items_leave_the_order_of_the_others(asked):
    number = asked.log.number
    scores, items = asked.log.scores(number, USER), asked.log.known[number].items
    some = [3, 7, 11]
    with_genre = {item: score for item, score in scores.items() if set(items[item]["genres"]) & set(some)}
    assert 0 < len(with_genre) < len(scores)
    check(asked.ask(k=1_000, filter={"genres": some}).json()["items"], with_genre, 1_000)
    assert set(asked.found(filter={"item_id": [1, 5, 9, 7_777]})) == {1, 5, 9}
    priced = {item: score for item, score in scores.items() if items[item]["price"] is not None}
    cheap = {item: score for item, score in priced.items() if 20 <= items[item]["price"] <= 30}
    check(asked.ask(k=1_000, filter={"price": {"min": 20, "max": 30}}).json()["items"], cheap, 1_000)
    assert asked.found(filter={"item_id": [7_777]}) == {}
    first = list(asked.found(k=5))
    assert list(asked.found(k=4, exclude=first[:1])) == first[1:]
    assert list(asked.found(k=5, exact=True)) == first


def test_each_answer_is_of_one_version_while_versions_come(asked):
    answers, stop = [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(asked.client.post("/v1/retrieve", json={"user": USER, "k": 1_000}).json())

    thread = threading.Thread(target=ask)
    thread.start()
    for number in range(200, 206):
        version = asked.log.learn(number, num_items=70)
        wait_until(lambda version=version: answers and answers[-1]["version"] >= version)
    stop.set()
    thread.join(timeout=60)
    assert len({answer["version"] for answer in answers}) >= 6
    for answer in {answer["version"]: answer for answer in answers}.values():
        check(answer["items"], asked.log.scores(answer["version"], USER), 1_000)


def test_metrics_tell_what_is_searched(asked):
    asked.ask()
    text = asked.client.get("/metrics").text
    assert "springtide_retrieved_items_total" in text
    assert re.search(r"springtide_retrieve_items [1-9]", text)
    assert "springtide_retrieve_version" in text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "missing required field `user`"),
        ({"user": USER, "count": 3}, 400, "unknown field `count`"),
        ({"user": USER, "k": 0}, 422, "k is 0, it must be from 1 to 1000"),
        ({"user": USER, "k": 1_001}, 422, "k is 1001"),
        ({"user": {"age": "old"}}, 422, "user: .*not a number"),
        ({"user": USER, "filter": {"age": [1]}}, 422, "'age' is no feature of an item"),
        ({"user": USER, "filter": {"genres": 3}}, 422, "genres needs a list of ids"),
        ({"user": USER, "filter": {"genres": []}}, 422, "genres needs a list of ids"),
        ({"user": USER, "filter": {"price": [3]}}, 422, "price is a number"),
        ({"user": USER, "filter": {"price": {"min": "low"}}}, 422, "price: .*not a number"),
        ({"user": USER, "exclude": [[1]]}, 422, "exclude: "),
        ({"user": USER, "exclude": [1] * 70_000}, 413, "70000 items to exclude, the limit is 65536"),
    ],
)
def test_wrong_requests_are_clear_errors(asked, body, status, message):
    response = asked.client.post("/v1/retrieve", json=body)
    assert response.status_code == status
    assert re.search(message, response.json()["error"]["message"])


def test_a_model_without_towers_is_a_clear_error(world):
    world.log.start_epoch()
    client = world.serve()
    world.served(client, world.log.number)
    response = client.post("/v1/retrieve", json={"user": {"user_id": 1}})
    assert response.status_code == 422
    assert response.json()["error"]["code"] == "no_towers"
    assert 'name = "two_tower"' in response.json()["error"]["hint"]


def test_before_the_first_version_there_are_no_items(world):
    client = world.serve()
    response = client.post("/v1/retrieve", json={"user": {}})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
