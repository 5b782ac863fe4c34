import gc
import json
import os
import signal
import sys
import threading

import httpx
import msgspec
import numpy as np
import pytest
from springtide_client.keys import hash_string

from app.errors import UserError
from app.serving.config import ServeConfig
from app.serving.server.serve import ServeError, serve
from tests.support.waiting import wait_until

DIM, USER, ITEM = 4, 0, 1


def test_the_server_starts_before_the_log_and_catches_up_by_itself(world):
    client = world.serve()
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_ready"
    assert answer.headers["retry-after"] == "1"
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/v1/status").json()["trainer"] == "stopped"
    head = client.head("/readyz")  # as monitors ask
    assert (head.status_code, head.headers["retry-after"], head.content) == (503, "1", b"")
    assert [client.head(path).status_code for path in ("/", "/healthz", "/metrics", "/v1/status")] == [200] * 4
    assert client.head("/v1/events").status_code == 405
    assert client.get("/v1/embeddings/user_id/1").status_code == 503
    assert client.post("/v1/embeddings/user_id", json={"ids": [1]}).status_code == 503
    assert client.get("/v1/bases/latest").status_code == 503
    assert client.get("/v1/log?after=0").status_code == 503
    world.log.start_epoch()
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]})
    world.served(client, number)
    assert client.get("/v1/embeddings/user_id/1").json()["vector"] == [1, 2, 3, 4]


def test_one_row_by_get(world):
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


def test_many_rows_by_post(world):
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


def test_raw_ids_are_for_integer_features(world):
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


def test_neighbors_carry_their_texts(world):
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


def test_predictions_of_instances_and_candidates_agree(world):
    world.log.start_epoch()
    bias = np.array([0.0, 2.0], np.float32)
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]}, dense={"linear.bias": bias})
    client = world.serve()
    world.served(client, number)
    instances = [{"user_id": 1, "item_id": item, "last_items": [3, 4], "age": 30} for item in ("a", "b", 5)]
    answer = client.post("/v1/predict", json={"instances": instances})
    predictions = answer.json()["predictions"]
    assert answer.json()["version"] == number
    assert answer.headers["x-springtide-version"] == str(number)
    assert [sorted(prediction) for prediction in predictions] == [["click", "order"]] * 3
    assert all(0 < prediction["order"] < 1 for prediction in predictions)
    context = {"user_id": 1, "last_items": [3, 4], "age": 30}
    candidates = [{"item_id": item} for item in ("a", "b", 5)]
    again = client.post("/v1/predict", json={"context": context, "candidates": candidates})
    assert again.json()["predictions"] == predictions
    # rows of user 1, and none of an item nor of the two in its list: told, and counted
    assert answer.headers["x-springtide-rows"] == again.headers["x-springtide-rows"] == "known=3, unknown=9"
    counted = client.get("/metrics").text
    assert 'springtide_predict_rows_total{status="known"} 6' in counted
    assert 'springtide_predict_rows_total{status="unknown"} 18' in counted
    assert client.post("/v1/predict", json={"instances": []}).json()["predictions"] == []
    # nothing is created
    assert client.get("/v1/embeddings/item_id/a").json()["status"] == "unknown"


@pytest.mark.parametrize(
    ("body", "status", "index"),
    [
        ({"instances": [{"user_id": 1}, {"user_id": [1]}]}, 422, 1),
        ({"instances": [{"user_id": 1}, 5]}, 422, 1),
        ({"instances": [{"age": "old"}]}, 422, 0),
        ({"instances": [{}] * 9}, 413, None),
        ({"instances": [{}], "candidates": [{}]}, 422, None),
        ({"instances": [{}], "context": {}}, 422, None),
        ({}, 422, None),
        ({"instances": 5}, 400, None),
        ([], 400, None),
    ],
)
def test_a_bad_instance_is_named_by_its_index(world, body, status, index):
    world.log.start_epoch()
    client = world.serve(max_instances=8)
    world.served(client, world.log.number)
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == status
    assert answer.json()["error"].get("index") == index
    assert set(answer.json()["error"]) >= {"code", "message", "hint"}


def test_a_demand_gets_fresh_data_or_a_clear_refusal(world):
    world.log.start_epoch()
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]}, complete_until_ms=1_000)
    client = world.serve()
    world.served(client, number)
    old = {"X-Springtide-Max-Staleness-Ms": "500"}
    for ask in (
        lambda headers: client.get("/v1/embeddings/user_id/1", headers=headers),
        lambda headers: client.get("/v1/embeddings/user_id/1/neighbors", headers=headers),
        lambda headers: client.post("/v1/embeddings/user_id", json={"ids": [1]}, headers=headers),
        lambda headers: client.post("/v1/predict", json={"instances": [{}]}, headers=headers),
    ):
        assert ask({}).status_code == 200
        refused = ask(old)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_stale")
        assert refused.headers["retry-after"] == "1"
        refused = ask({"X-Springtide-Min-Version": str(number + 1)})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "version_not_reached")
        assert ask({"X-Springtide-Min-Version": str(number)}).status_code == 200
        assert ask({"X-Springtide-Min-Version": "soon"}).status_code == 400
    body = {"ids": [1], "max_staleness_ms": 500}
    assert client.post("/v1/embeddings/user_id", json=body).status_code == 503
    newer = world.log.publish()
    world.served(client, newer)
    assert client.get("/v1/embeddings/user_id/1", headers={"X-Springtide-Max-Staleness-Ms": "60000"}).status_code == 200
    assert 'springtide_requests_rejected_total{reason="max_staleness"} 5' in client.get("/metrics").text


def test_every_refusal_has_one_form(world):
    client = world.serve(max_body_bytes=100)
    for answer, status in (
        (client.get("/v1/nothing"), 404),
        (client.put("/v1/predict"), 405),
        (client.get("/v1/versions?limit=x"), 422),
        (client.get("/v1/embeddings/user_id"), 422),
        (client.post("/v1/predict", content=b"x" * 101), 413),
        (client.post("/v1/embeddings/user_id", content=b"x" * 101), 413),
        (client.post("/v1/predict", content=(b"x" for _ in range(101))), 413),
        (client.post("/v1/embeddings/user_id", content=(b"x" for _ in range(101))), 413),
        (client.post("/v1/embeddings/user_id", content=b"", headers={"content-type": "text/csv"}), 415),
        (client.post("/v1/forget", json={}), 401),
        (client.get("/healthz", headers={"host": "evil.example"}), 421),
    ):
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
        assert answer.headers["content-type"] == "application/json"


def test_tokens_guard_a_server(world, monkeypatch):
    monkeypatch.setenv("SPRINGTIDE_TOKENS", "read=reader-secret;predict=predict-secret;admin=admin-secret")
    world.log.start_epoch()
    client = world.serve()
    reader, admin = ({"Authorization": f"Bearer {name}-secret"} for name in ("reader", "admin"))
    assert client.get("/readyz").status_code in (200, 503)
    assert client.get("/").status_code == 200
    assert client.get("/v1/status").status_code == 401
    assert client.get("/v1/status").headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/status", headers=reader).status_code == 200
    assert client.post("/v1/predict", json={}, headers=reader).status_code == 403
    assert client.post("/v1/embeddings/user_id", json={"ids": []}).status_code == 401
    world.served(client, world.log.number)
    forget = {"feature": "user_id", "id": 5}
    refused = client.post("/v1/forget", json=forget, headers=admin)
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_supported_yet")
    assert not (world.log.path / "commands").exists()
    world.log.write_status(commands=["forget"])
    accepted = client.post("/v1/forget", json=forget, headers=admin)
    assert accepted.status_code == 202
    order = json.loads((world.log.path / "commands" / f"{accepted.json()['command']}.json").read_text())
    assert order["keys"] == [forget]
    assert client.post("/v1/forget", json=forget, headers=reader).status_code == 403
    assert client.post("/v1/rollback", json={"version": 5}, headers=admin).status_code == 501
    assert client.patch("/v1/table", json={"lr": 0.5}, headers=admin).status_code == 501


def test_status_joins_the_trainers_words_with_measurements(world):
    client = world.serve()
    world.log.start_epoch()
    world.served(client, world.log.number)
    now_ms = world.log.meta().created_ms
    number = world.log.publish(record_ms=[now_ms - 200, now_ms - 100])
    world.served(client, number)
    world.log.write_status(version=number + 5, samples_trained=7, positions={"clicks/0": {"lag": 3}})
    status = client.get("/v1/status").json()
    assert status["version"] == number
    assert status["published_version"] == number + 5
    assert status["samples_trained"] == 7
    assert status["trainer"] == "running"
    assert 100 <= status["freshness_ms"]["p50"] <= status["freshness_ms"]["p99"] < 60_000
    assert 0 <= status["staleness_ms"] < 60_000
    newer = wait_until(
        lambda: [
            s
            for s in client.get("/v1/status?history=1").json()["history"]
            if s["version"] == number + 5 or s["version"] == number
        ]
    )
    assert newer[-1]["at_ms"] >= now_ms
    text = client.get("/metrics").text
    assert f"springtide_version {number}" in text
    assert 'springtide_consumer_lag_records{partition="clicks/0"} 3' in text
    assert 'springtide_trainer_state{state="running"} 1' in text
    assert 'springtide_http_requests_total{route="/v1/status",status="200"}' in text


def test_versions_that_passed_before_the_server_do_not_count_as_fresh(world):
    world.log.start_epoch()
    number = world.log.publish(record_ms=[1, 2, 3])
    client = world.serve()
    world.served(client, number)
    assert client.get("/v1/status").json()["freshness_ms"] is None


def test_the_pages_need_nothing_from_elsewhere(world):
    client = world.serve()
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "").replace("http:%2F%2Fwww.w3.org", "")
        assert "https://" not in page.text
    routes = client.get("/openapi.json").json()["paths"]
    assert "/v1/predict" in routes
    assert routes["/v1/predict"]["post"]["summary"] == "Score instances"


def test_a_taken_port_and_an_open_bind_are_told_in_one_line(world, tmp_path):
    client = world.serve()
    with pytest.raises(ServeError, match="port"):
        serve(tmp_path, ServeConfig(port=client.base_url.port))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"\[serve\] cache_path = .*cannot be used"):
        serve(tmp_path, ServeConfig(port=0, cache_path=str(tmp_path / "file")))
    with pytest.raises(UserError, match="tokens_file"):
        serve(tmp_path, ServeConfig(host="0.0.0.0", port=0))
    with pytest.raises(ServeError, match="cannot listen"):
        serve(tmp_path, ServeConfig(host="192.0.2.1", port=0, insecure=True))


def in_a_process(world, on_listening):
    """A server in a child that has all imported by now; returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            serve(world.log.path, ServeConfig(port=0), on_listening=on_listening)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_0_even_while_streams_are_open(world, number):
    world.log.start_epoch()
    hears, tells = os.pipe()
    pid = in_a_process(world, lambda url: os.write(tells, url.encode()))
    with httpx.Client(base_url=os.read(hears, 100).decode(), timeout=20) as client:
        world.served(client, world.log.number)
        with client.stream("GET", f"/v1/log?after={world.log.number}") as answer:
            assert answer.status_code == 200
            os.kill(pid, number)
            _, status = os.waitpid(pid, 0)
    assert status == 0
    os.close(hears)
    os.close(tells)


def test_a_servers_process_gives_the_event_loop_way_soon(world):
    world.log.start_epoch()
    hears, tells = os.pipe()

    def told(url):
        os.write(tells, f"{sys.getswitchinterval() < 0.005} {gc.get_freeze_count() > 0}".encode())
        os._exit(0)

    os.waitpid(in_a_process(world, told), 0)
    assert os.read(hears, 100) == b"True True"
    os.close(hears)
    os.close(tells)


def test_what_the_first_view_brings_is_no_work_for_the_collector(world):
    hears, tells = os.pipe()

    def told(url):
        frozen = gc.get_freeze_count()
        os.write(tells, b"listens ")

        def wait():
            try:
                wait_until(lambda: gc.get_freeze_count() > frozen)
                os.write(tells, b"frozen")
            finally:
                os._exit(0)

        threading.Thread(target=wait, daemon=True).start()

    pid = in_a_process(world, told)
    os.close(tells)
    assert os.read(hears, 100) == b"listens "
    world.log.start_epoch()
    assert os.read(hears, 100) == b"frozen"
    os.waitpid(pid, 0)
    os.close(hears)
