"""HotModel as users see it: a folder or a URL in, dictionaries and arrays out, errors that say what to do."""

import math
import subprocess
import sys
import time

import numpy as np
import pytest

from springtide_client import EncodeError, HotModel, NoModelError, StaleModelError
from springtide_client.encode import encode_instances
from springtide_client.hot_model import encode_ids
from springtide_client.keys import encode_id
from springtide_client.model.view import View
from tests.client.log_server import TOKEN, FaultyLogServer
from tests.support.waiting import wait_until

INSTANCES = [
    {"user_id": 1, "item_id": "shoe", "genres": [1, 2], "last_items": ["shoe", 4], "age": "3.5", "unknown": {}},
    {},
]


def wait_for_version(model: HotModel, number: int) -> None:
    wait_until(lambda: model.version == number, f"version {number}")


@pytest.fixture(params=["directory", "http"])
def open_model(request, tmp_path):
    """Opens a log's HotModel by folder or by URL."""
    opened: list = []

    def start(log, **options) -> HotModel:
        if request.param == "http":
            server = FaultyLogServer(log)
            opened.append(server)
            where, options = server.url, {"token": TOKEN} | options
        else:
            where = log.path
        opened.append(HotModel(where, **options))
        return opened[-1]

    yield start
    for one in reversed(opened):
        one.close()


def test_predictions_and_rows_follow_the_log(open_model, log) -> None:
    shoe = encode_id("shoe")[0]
    log.append({(0, 1): log.row(1), (1, shoe): log.row(2)})
    model = open_model(log)
    swaps: list[int] = []
    model.on_swap(swaps.append)
    assert model.version == log.number
    before = model.predict(INSTANCES)
    assert [set(answer) for answer in before] == [{"click", "order"}] * 2
    assert all(isinstance(value, float) and 0 < value < 1 for answer in before for value in answer.values())

    number = log.append({(0, 1): log.row(3)}, [(1, shoe)])
    wait_for_version(model, number)
    assert swaps == [number]
    after = model.predict(INSTANCES)
    assert after[0] != before[0]
    assert after[1] == before[1]  # its ids are not those that moved
    rows, status = model.lookup("user_id", [[1, 2]])
    assert rows.shape == (1, 2, log.dim)
    assert status.tolist() == [[0, 1]]
    np.testing.assert_array_equal(rows[0, 0], log.rows[0, 1][0])
    assert np.isnan(rows[0, 1]).all()
    # a shared feature reads its owner's rows; strings are hashed to ids
    assert model.lookup("last_items", ["shoe", "boot"])[1].tolist() == [3, 1]


def test_equal_versions_give_bitwise_equal_predictions(open_model, log) -> None:
    for seed in range(5):
        log.append({(0, seed): log.row(seed), (1, seed): log.row(seed + 9)})
    log.write_base()
    log.append({(0, 1): log.row(50)})
    model = open_model(log)
    view = View.open(log.path / f"base-{log.newest_base['number']:020d}")
    from springtide_client.log.directory import LogDirectory

    for record in LogDirectory(log.path).records(view.head):
        view = view.apply(record)
    expected = view.predict(encode_instances(log.schema, INSTANCES))
    assert [list(answer.values()) for answer in model.predict(INSTANCES)] == expected.tolist()


def test_an_invalid_instance_is_named(open_model, make_log) -> None:
    model = open_model(make_log())
    with pytest.raises(EncodeError, match="instance 1: age: the string 'old' is not a number") as caught:
        model.predict([{}, {"age": "old"}])
    assert (caught.value.index, caught.value.field) == (1, "age")
    assert model.predict([]) == []
    with pytest.raises(KeyError, match="no id feature 'age': there are user_id, item_id"):
        model.lookup("age", [1])


def test_calls_raise_when_the_model_is_staler_than_allowed(open_model, log) -> None:
    log.now_ms = time.time_ns() // 1_000_000 - 50_000
    log.append()
    model = open_model(log, max_staleness_seconds=30.0)
    assert model.staleness_seconds > 49
    with pytest.raises(StaleModelError, match=r"s old, 30 s are allowed"):
        model.predict(INSTANCES)
    with pytest.raises(StaleModelError):
        model.lookup("user_id", [1])
    log.now_ms += 49_900
    wait_for_version(model, log.append())
    assert len(model.predict(INSTANCES)) == 2
    wait_for_version(model, log.append(complete_until_ms=0))
    assert model.staleness_seconds == math.inf


def test_a_closed_model_still_predicts(open_model, log) -> None:
    number = log.append({(0, 1): log.row(1)})
    model = open_model(log)
    model.close()
    log.append({(0, 1): log.row(2)})
    assert model.version == number
    assert len(model.predict(INSTANCES)) == 2


def test_a_dropped_model_leaves_no_thread_and_no_folder(open_model, log, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    model = open_model(log)
    dropped = HotModel(model._where, token=TOKEN)
    thread = dropped._follower._thread
    folders = set((tmp_path / "temporary").iterdir())
    del dropped
    wait_until(lambda: not thread.is_alive())
    assert len(set((tmp_path / "temporary").iterdir())) == len(folders) // 2  # over HTTP a folder each


def test_in_a_forked_process_the_error_says_that_nothing_follows_the_log(open_model, make_log) -> None:
    model = open_model(make_log())
    assert model.error is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        assert "create a HotModel here" in str(model.error)
        model.close()  # what the parent follows with is not ended here
    assert model.error is None
    wait_for_version(model, model.version)


def test_without_a_model_the_error_says_what_to_do(tmp_path) -> None:
    with pytest.raises(NoModelError, match=r"nothing.*within 0\.05 s.*start a trainer"):
        HotModel(tmp_path / "nothing", wait_seconds=0.05)
    with pytest.raises(NoModelError, match="there is no such folder"):
        HotModel(tmp_path / "nothing", wait_seconds=0.05)
    with pytest.raises(NoModelError, match="holds no log with a version"):
        HotModel(tmp_path, wait_seconds=0.05)
    with pytest.raises(ValueError, match="http://localhost:8000"):
        HotModel("localhost:8000")
    with pytest.raises(NoModelError, match="cannot be reached"):
        HotModel("http://127.0.0.1:9", wait_seconds=0.2)


@pytest.mark.parametrize("options", [{"max_staleness_seconds": -1}, {"cache_bytes": "much"}, {"cache_bytes": 0}])
def test_invalid_settings_are_refused(tmp_path, options) -> None:
    with pytest.raises(ValueError, match=r"-1|much|0"):
        HotModel(tmp_path, **options)


def test_ids_keep_their_shape_and_are_encoded_as_in_records() -> None:
    ids, shape = encode_ids(np.arange(6, dtype=np.int32).reshape(2, 3))
    assert (ids.tolist(), ids.dtype, shape) == ([0, 1, 2, 3, 4, 5], np.int64, (2, 3))
    ids, shape = encode_ids([1, "1", "shoe", 1.0, 2**64 - 1])
    assert ids.tolist() == [1, 1, encode_id("shoe")[0], 1, encode_id(2**64 - 1)[0]]
    assert encode_ids(7)[1] == ()
    assert encode_ids(np.array(["7", "shoe"]))[0].tolist() == [7, encode_id("shoe")[0]]
    assert encode_ids(np.array([2**64 - 1], np.uint64))[0].tolist() == [encode_id(2**64 - 1)[0]]
    assert encode_ids([])[0].tolist() == []


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, springtide_client; from springtide_client import HotModel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "deploy/client"}).returncode == 0
