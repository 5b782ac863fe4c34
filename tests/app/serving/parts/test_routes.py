"""Servers of parts: each answers for its own rows, a router for all, as one server that holds everything would."""

import numpy as np
import pytest

from springtide_client.errors import PartError
from springtide_client.format.records import Head
from springtide_client.hot_model import HotModel
from springtide_client.parts.row_request import MAX_KEYS, RowRequest
from springtide_client.rows.hash_range import HashRange
from tests.app.serving.conftest import ITEM, USER
from tests.app.serving.parts.conftest import USERS, owners, raw

IDS = [*range(-3, USERS + 3), *range(0, 50, 4)]
INSTANCES = [
    {"user_id": i, "item_id": i % 60, "genres": [1, i], "last_items": [i, "shoe"], "age": i} for i in range(0, 90, 7)
]


@pytest.mark.parametrize("name", ["router", "second"])
def test_a_router_answers_like_a_server_that_holds_everything(servers, name) -> None:
    router = getattr(servers, name)
    for feature in ("user_id", "last_items"):
        for accept in ("application/json", "application/msgpack", "application/vnd.apache.arrow.stream"):
            for ids in (IDS, IDS[:1], []):
                asked = [
                    c.post(f"/v1/embeddings/{feature}", json={"ids": ids}, headers={"accept": accept})
                    for c in (servers.whole, router)
                ]
                assert asked[0].status_code == 200
                assert asked[0].content == asked[1].content
    for ids in (IDS, IDS[5:6], [], list(range(70_000))[:65_536]):
        for _ in range(2):
            expected, found = raw(servers.whole, "user_id", ids), raw(router, "user_id", ids)
            assert (found.status_code, found.content) == (200, expected.content)
            for header in ("x-springtide-version", "x-springtide-dim", "content-type"):
                assert found.headers[header] == expected.headers[header]
    for path in ("user_id/1", "user_id/3", "user_id?id=4", "user_id/7", "user_id/9999", "item_id/shoe", "item_id/41"):
        expected, found = servers.whole.get(f"/v1/embeddings/{path}"), router.get(f"/v1/embeddings/{path}")
        assert (found.status_code, found.json()) == (expected.status_code, expected.json())
        assert found.headers["x-springtide-version"] == expected.headers["x-springtide-version"]
    assert router.post("/v1/embeddings/age", json={"ids": [1]}).json()["error"]["code"] == "no_such_feature"
    late = {"x-springtide-min-version": str(2**60)}
    assert raw(router, "user_id", [1], **late).json()["error"]["code"] == "version_not_reached"
    assert router.get("/v1/embeddings/user_id/1", headers=late).json()["error"]["code"] == "version_not_reached"


@pytest.mark.parametrize("name", ["router", "first", "second"])
def test_who_knows_all_parts_predicts_with_the_rows_of_all(servers, name) -> None:
    expected = servers.whole.post("/v1/predict", json={"instances": INSTANCES})
    found = getattr(servers, name).post("/v1/predict", json={"instances": INSTANCES})
    assert found.json() == expected.json()
    assert found.headers["x-springtide-rows"] == expected.headers["x-springtide-rows"]
    assert getattr(servers, name).post("/v1/predict", json={"instances": []}).json()["predictions"] == []
    body = {"request_id": "r", "candidates": INSTANCES}
    ranked = getattr(servers, name).post("/v1/rank", json=body)
    assert ranked.status_code == 200
    assert ranked.json() == servers.whole.post("/v1/rank", json=body).json()


def test_a_part_answers_for_its_own_keys(servers) -> None:
    expected = np.array(servers.whole.post("/v1/embeddings/user_id", json={"ids": IDS}).json()["status"])
    for number, client in enumerate((servers.first, servers.alone)):
        own = [place for place, owner in enumerate(owners(USER, IDS)) if owner == number % 2]
        ids = [IDS[place] for place in own]
        assert 100 < len(own) < 220
        for _ in range(2):  # the second time by the fast path
            found = raw(client, "user_id", ids)
            assert found.content == raw(servers.whole, "user_id", ids).content
        found = client.post("/v1/embeddings/user_id", json={"ids": ids}).json()
        assert found["status"] == expected[own].tolist()
        assert client.get(f"/v1/embeddings/user_id/{ids[0]}").status_code in (200, 404)


def test_a_key_on_the_wrong_server_is_misdirected(servers) -> None:
    foreign = [i for i, owner in zip(IDS, owners(USER, IDS), strict=True) if owner == 1][5]
    own = next(i for i, owner in zip(IDS, owners(USER, IDS), strict=True) if owner == 0)
    for _ in range(2):
        assert raw(servers.first, "user_id", [own] * 2).status_code == 200  # this head takes the fast path from now on
        refused = raw(servers.first, "user_id", [own, foreign])
        assert refused.status_code == 421
        error = refused.json()["error"]
        assert (error["code"], error["index"], error["range"]) == ("misdirected", 1, "2/2")
        assert error["address"] == servers.urls[1]
    assert "belongs to part 2/2, this server holds part 1/2" in error["message"]
    assert servers.first.get(f"/v1/embeddings/user_id/{foreign}").status_code == 421
    refused = servers.alone.post("/v1/embeddings/user_id", json={"ids": [own]})
    assert refused.status_code == 421
    assert refused.json()["error"]["address"] is None
    ranked = servers.alone.post("/v1/rank", json={"candidates": INSTANCES})
    assert (ranked.status_code, ranked.json()["error"]["code"]) == (421, "misdirected")
    refused = servers.alone.post("/v1/predict", json={"instances": INSTANCES})
    assert (refused.status_code, refused.json()["error"]["code"]) == (421, "misdirected")


def test_the_server_tells_its_part_and_holds_its_share(servers) -> None:
    held = {}
    for name in ("first", "second", "router", "whole"):
        client = getattr(servers, name)
        part = client.get("/v1/status").json()["server"]["part"]
        probes = [client.get(path).json() for path in ("/healthz", "/readyz")]
        metrics = dict(
            line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line.startswith("springtide_")
        )
        held[name] = float(metrics["springtide_rows_held"])
        if name == "whole":
            assert part is None
            assert all("range" not in probe for probe in probes)
            assert (metrics["springtide_part_number"], metrics["springtide_parts"]) == ("1", "1")
            continue
        number = {"first": 1, "second": 2, "router": 0}[name]
        hash_range = f"{number}/2" if number else None
        assert [probe["range"] for probe in probes] == [hash_range] * 2
        assert part == {"range": hash_range, "router": name != "first", "rows": held[name], "parts": servers.urls}
        assert (metrics["springtide_part_number"], metrics["springtide_parts"]) == (str(number), "2")
    assert held["router"] == 0
    assert held["first"] + held["second"] == held["whole"]
    assert held["first"] == pytest.approx(held["whole"] / 2, rel=0.2)
    text = servers.router.get("/metrics").text
    assert 'springtide_part_request_duration_seconds_count{outcome="ok",range="2/2"}' in text


def test_a_hot_model_of_all_servers_holds_no_rows_and_answers_the_same(servers) -> None:
    expected = servers.whole.post("/v1/predict", json={"instances": INSTANCES}).json()["predictions"]
    with HotModel(servers.urls) as parted, HotModel(servers.world.log.path) as whole:
        assert parted._follower.view.num_rows == 0
        assert not list(parted._http._own_folder.rglob("rows*"))
        assert parted.version == whole.version == servers.world.log.number
        assert parted.predict(INSTANCES) == whole.predict(INSTANCES) == expected
        for ids in (IDS, [], [[1, 2], [3, 4]], ["shoe", 1]):
            for feature in ("user_id", "item_id"):
                for found, wanted in zip(parted.lookup(feature, ids), whole.lookup(feature, ids), strict=True):
                    np.testing.assert_array_equal(found, wanted)
        with pytest.raises(KeyError, match="no id feature"):
            parted.lookup("age", [1])
    with (
        HotModel(servers.urls[::-1]) as crossed,
        pytest.raises(PartError, match="holds part 2/2, and not part 1/2"),
    ):
        crossed.lookup("user_id", IDS)
    with pytest.raises(ValueError, match="at least one"):
        HotModel([])
    with pytest.raises(ValueError, match="http://host:port"):
        HotModel(["localhost"])


def test_rows_of_a_part_are_given_at_the_demanded_version_only(servers) -> None:
    log = servers.world.log
    ids = np.array([i for i, owner in zip(IDS, owners(USER, IDS), strict=True) if owner == 0])

    def ask(head: Head, hash_range: str = "1/2", table: str = "", change=lambda path: path, ids=ids):
        request = RowRequest(head, HashRange.parse(hash_range), table, False, np.array([USER], np.uint16), ids)
        path, body = request.encode(wait_ms=20)
        response = servers.first.post(change(path), content=body)
        return response.status_code, "" if response.status_code == 200 else response.json()["error"]["code"]

    head = Head(log.number, log.checksum)
    assert ask(head) == (200, "")
    assert ask(Head(log.number + 1, 1)) == (503, "version_not_reached")
    assert ask(Head(log.number, log.checksum + 1)) == (410, "version_gone")
    assert ask(Head(1, 1)) == (410, "version_gone")
    assert ask(head, "2/2") == (421, "misdirected")
    assert ask(head, table="other") == (400, "bad_request")
    assert ask(head, change=lambda path: path.replace("feature=", "other=")) == (400, "bad_request")
    assert ask(head, change=lambda path: path.replace("version=", "v=")) == (400, "bad_request")
    assert ask(head, ids=np.resize(ids, MAX_KEYS)) == (200, "")
    assert ask(head, ids=np.resize(ids, MAX_KEYS + 1)) == (400, "bad_request")


def test_a_version_that_was_just_replaced_is_still_given(servers) -> None:
    log, world = servers.world.log, servers.world
    ids = np.array([i for i, owner in zip(IDS, owners(USER, IDS), strict=True) if owner == 0])
    before, head = raw(servers.first, "user_id", ids.tolist()).content, Head(log.number, log.checksum)
    log.publish({(USER, int(ids[4])): [5, 5, 5, 5]})
    for client in servers[1:6]:
        world.served(client, log.number)
    assert raw(servers.first, "user_id", ids.tolist()).content != before
    request = RowRequest(head, HashRange(1, 2), "", False, np.array([USER], np.uint16), ids)
    path, body = request.encode(wait_ms=0)
    assert servers.first.post(path, content=body).content == before
    for _ in range(9):
        log.publish({(ITEM, 1): [0, 0, 0, 1]})
        world.served(servers.first, log.number)
    assert servers.first.post(path, content=body).status_code == 410
