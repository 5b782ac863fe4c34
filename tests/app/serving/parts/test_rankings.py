"""Neighbors and the best items over parts: those that one server with all rows would find."""

from itertools import product

import msgspec
import numpy as np
import pytest

from springtide.app.serving.retrieve import retriever
from springtide_client.format.records import Head
from springtide_client.hot_model import HotModel
from springtide_client.keys import hash_keys
from springtide_client.parts.rankings import ITEMS_ROUTE, NEIGHBORS_ROUTE, Demand, NeighborsRequest, RankedIds
from springtide_client.rows.hash_range import HashRange, owners_of
from springtide_client.rows.nearest import METRICS
from tests.app.serving.conftest import USER, World
from tests.app.serving.parts.conftest import owners
from tests.app.serving.retrieve.retrieval_log import RetrievalLog
from tests.support.ports import free_port
from tests.support.waiting import wait_until

WHO = {"user_id": 3, "last_items": [1, 2, 3], "age": 40}


@pytest.mark.parametrize("name", ["router", "first", "second"])
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_who_knows_all_parts_finds_the_neighbors_of_all(servers, name, metric) -> None:
    for path in ("user_id/4", "user_id/3", "item_id/7", "user_id/7", "user_id/9999", "item_id/shoe", "age/1"):
        for k in (3, 1_000):
            asked = f"/v1/embeddings/{path}/neighbors?k={k}&metric={metric}"
            expected, found = servers.whole.get(asked), getattr(servers, name).get(asked)
            assert found.status_code == expected.status_code
            if found.status_code == 200 or path.startswith("age"):
                assert found.json() == expected.json()
            else:
                assert found.json()["error"]["code"] == expected.json()["error"]["code"]
    assert len(servers.whole.get("/v1/embeddings/user_id/4/neighbors?k=1000").json()["neighbors"]) > 200


def test_a_part_that_knows_no_other_finds_none(servers) -> None:
    for refused in (
        servers.alone.get("/v1/embeddings/user_id/1/neighbors"),
        servers.alone.post("/v1/retrieve", json={"user": {}}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "misdirected")
    for client in (servers.first, servers.router, servers.whole):
        assert client.post("/v1/retrieve", json={"user": {}}).json()["error"]["code"] == "no_towers"


def test_a_part_ranks_its_own_ids_at_the_demanded_version(servers) -> None:
    log = servers.world.log
    demand = Demand(Head(log.number, log.checksum), HashRange(1, 2), 0)
    query = np.array([1, 1, 2, 3], "<f4").tobytes()

    def ask(demand=demand, route=NEIGHBORS_ROUTE, **changes):
        request = msgspec.structs.replace(NeighborsRequest(USER, 4, 5, "dot", query), **changes)
        return servers.first.post(demand.path(route), content=msgspec.msgpack.encode(request))

    found = RankedIds.decode(ask().content)
    assert set(owners(USER, found.ids_M)) == {0}
    assert found.scores_M.tolist() == sorted(found.scores_M.tolist(), reverse=True)
    for changes, status in (
        ({"k": 0}, 400),
        ({"k": "three"}, 400),
        ({"metric": "manhattan"}, 400),
        ({"number": 99}, 400),
        ({"query": query[:8]}, 400),
        ({"route": ITEMS_ROUTE}, 400),
        ({"demand": Demand(demand.head, HashRange(2, 2), 0)}, 421),
        ({"demand": Demand(Head(1, 1), HashRange(1, 2), 0)}, 410),
        ({"demand": Demand(Head(log.number + 1, 1), HashRange(1, 2), 0)}, 503),
    ):
        refused = ask(**changes)
        assert refused.status_code == status, (changes, refused.text)
        assert refused.json()["error"]["code"]
    assert servers.first.post(f"{NEIGHBORS_ROUTE}?version=1", content=b"\0").status_code == 400


def test_a_hot_model_finds_the_neighbors_that_servers_find(servers) -> None:
    with HotModel(servers.urls) as parted, HotModel(servers.world.log.path) as whole:
        for metric, (feature, row_id) in product(METRICS, (("user_id", 4), ("user_id", 3), ("item_id", 7))):
            path = f"/v1/embeddings/{feature}/{row_id}/neighbors?k=40&metric={metric}"
            expected = servers.whole.get(path).json()["neighbors"]
            for model in (parted, whole):
                ids, scores = model.neighbors(feature, row_id, 40, metric)
                assert scores == pytest.approx([neighbor["score"] for neighbor in expected], rel=1e-6)
                assert sorted(ids.tolist()) == sorted(neighbor["id"] for neighbor in expected) or metric == "cosine"
            ids, scores = parted.neighbors(feature, row_id, 40, metric)
            assert ids.tolist() == [neighbor["id"] for neighbor in expected]  # as the servers' compiled search
        for model in (parted, whole):
            assert [len(column) for column in model.neighbors("user_id", 9_999)] == [0, 0]
            with pytest.raises(KeyError, match="no id feature"):
                model.neighbors("age", 1)
            with pytest.raises(ValueError, match="the metrics are"):
                model.neighbors("user_id", 1, metric="manhattan")


class Parted:
    """A log that two towers learn in, one server with all rows, two parts, and a router."""

    def __init__(self, log: RetrievalLog) -> None:
        self.log, self.world = log, World(log)
        ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.whole = self.world.serve()
        self.first = self.world.serve(port=ports[0], range="1/2", parts=self.urls)
        self.second = self.world.serve(port=ports[1], range="2/2", parts=self.urls, router=True)
        self.router = self.world.serve(parts=self.urls)

    def ask(self, client, **body):
        """Return the response, once it comes from the newest version."""
        newest, body = {"X-Springtide-Min-Version": str(self.log.number)}, {"user": WHO} | body
        wait_until(lambda: client.post("/v1/retrieve", json=body, headers=newest).status_code != 503)
        response = client.post("/v1/retrieve", json=body, headers=newest)
        assert response.status_code == 200, response.text
        return response.json()

    def check(self, **body) -> list[dict]:
        """All find the same."""
        expected = self.ask(self.whole, **body)
        for client in (self.router, self.first, self.second):
            found = self.ask(client, **body)
            assert found["version"] == expected["version"] == self.log.number
            scores = [[item["score"] for item in document["items"]] for document in (found, expected)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4)
            ids = [{item["id"] for item in document["items"]} for document in (found, expected)]
            tied = sum(score < scores[1][-1] + 1e-4 for score in scores[1])
            assert len(ids[0] & ids[1]) >= len(ids[1]) - tied
        return expected["items"]


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, RetrievalLog(tmp_path_factory.mktemp("parted")) as log:
        patch.setattr(retriever, "INDEXED_ITEMS", 1 << 30)
        for number in range(3):
            log.learn(number, num_items=200, samples=300)
        made = Parted(log)
        yield made
        made.world.close()


def test_the_best_items_of_all_parts_are_those_of_one_server(parted) -> None:
    items = parted.check(k=20, exact=True)
    scores = parted.log.scores(parted.log.number, WHO)
    assert [item["score"] for item in items] == pytest.approx(sorted(scores.values(), reverse=True)[:20], abs=1e-4)
    best = [item["id"] for item in items]
    number = parted.log.config.schema.number("item_id")
    assert set(owners_of(hash_keys(np.full(20, number, np.uint16), np.array(best)), 2).tolist()) == {0, 1}
    assert len(parted.check(k=1_000)) == len(scores)
    parted.check(user={}, k=5)
    parted.check(user={"user_id": "never seen"}, k=5)
    found = parted.check(k=10, exact=True, exclude=best[:5], filter={"item_id": best, "price": {"min": -1e9}})
    assert not {item["id"] for item in found} & set(best[:5])


def test_new_items_are_found_at_the_next_version_and_forgotten_ones_are_gone(parted) -> None:
    parted.log.learn(50, first_item=900, num_items=9, samples=60)
    assert {item["id"] for item in parted.check(k=1_000)} >= set(range(900, 909))
    parted.log.forget_item(903)
    found = {item["id"] for item in parted.check(k=1_000)}
    assert 903 not in found
    assert found >= {902, 904}
    for client in (parted.router, parted.whole):
        refused = client.post("/v1/retrieve", json={"user": {"nobody": 1}, "filter": {"nothing": [1]}})
        assert refused.status_code == 422
