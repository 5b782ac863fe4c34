"""Two parts, each a router, over a log that a trainer goes on writing: every answer is that of its one version."""

import threading

import numpy as np
import pytest

from springtide.app.version_log.compact.merge import compact_log
from springtide_client.encode import encode_instances
from springtide_client.hot_model import HotModel
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from springtide_client.system.clock import wall_ms
from tests.app.serving.conftest import World
from tests.app.serving.parts.conftest import raw
from tests.app.training.random_clicks import make_batch
from tests.app.training.test_wide_log import config_of
from tests.support.learned_log import LearnedLog
from tests.support.ports import free_port
from tests.support.waiting import wait_until

NUM_VERSIONS, SAMPLES = 9, 24
IDS = list(range(60))
INSTANCES = [{"user_id": i, "item_id": 3 * i, "genres": [i % 30, 2], "age": 30.0 + i} for i in range(12)]


class TrainedLog:
    """A log's folder, as World takes it."""

    def __init__(self, path) -> None:
        self.path, self.number = path, 0


def test_every_answer_is_of_one_version_while_versions_and_bases_are_swapped(tmp_path) -> None:
    admission = {"features": {"item_id": {"admission": {"min_count": 3}}}, "table": {"device_bytes": "64MiB"}}
    config = config_of(tmp_path / "model", admission)
    directory = LogDirectory(config.log.path)
    world = World(TrainedLog(config.log.path))
    views: dict[int, View] = {}
    rows: list[tuple[int, bytes]] = []
    predictions: list[dict] = []
    with LearnedLog(config) as made:
        state, log = made.state, made.log
        views[log.last_number] = newest = View.open(directory.newest_base())
        ports = [free_port(), free_port()]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        settings = {"parts": urls, "router": True}
        clients = [world.serve(port=port, range=f"{n}/2", **settings) for n, port in enumerate(ports, 1)]
        for client in clients:
            world.served(client, log.last_number)
        done, failures = threading.Event(), []

        def ask() -> None:
            number = 0
            while not done.is_set():
                client, number = clients[number % 2], number + 1
                for name, response in (
                    ("rows", raw(client, "item_id", IDS)),
                    ("predictions", client.post("/v1/predict", json={"instances": INSTANCES})),
                ):
                    if response.status_code != 200:
                        failures.append(response.text)
                    elif name == "rows":
                        rows.append((int(response.headers["x-springtide-version"]), response.content))
                    else:
                        predictions.append(response.json())

        asking = threading.Thread(target=ask)
        with HotModel(urls) as model:
            asking.start()
            try:
                for number in range(NUM_VERSIONS):
                    state.learn(make_batch(number, SAMPLES, config.schema))
                    now_ms = wall_ms()
                    head = log.append(*state.checkpoint(created_ms=now_ms, complete_until_ms=now_ms))
                    log.sync()  # now it can be read
                    for record in directory.records(newest.head):
                        views[record.number] = newest = newest.apply(record)
                    if number % 3 == 2:
                        compact_log(directory, window_samples=100, base_files=2 + number % 2)
                    enough = len(predictions) + 2
                    wait_until(lambda enough=enough: len(predictions) >= enough or failures)
                for client in clients:
                    world.served(client, head.number)
                wait_until(lambda: model.version == head.number)
                found, status = model.lookup("item_id", IDS)
                expected, codes = newest.lookup(np.array([config.schema.number("item_id")], np.uint16), np.array(IDS))
                np.testing.assert_array_equal(found, expected)
                np.testing.assert_array_equal(status, codes)
                encoded = encode_instances(config.schema, INSTANCES)
                assert [list(p.values()) for p in model.predict(INSTANCES)] == newest.predict(encoded).tolist()
                held = [client.get("/v1/status").json()["server"]["part"]["rows"] for client in clients]
            finally:
                done.set()
                asking.join()
                world.close()
    assert not failures
    assert len({version for version, _ in rows}) > 2
    item = np.array([config.schema.number("item_id")], np.uint16)
    for version, content in rows:
        rows_KD, status_K = views[version].lookup(item, np.array(IDS))
        assert content == rows_KD.tobytes() + status_K.tobytes()
    for document in predictions:
        expected = views[document["version"]].predict(encoded)
        assert [list(p.values()) for p in document["predictions"]] == expected.tolist()
    assert held[0] == pytest.approx(held[1], rel=0.4)
