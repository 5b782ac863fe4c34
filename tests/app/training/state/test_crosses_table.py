"""Crosses in a table of their own: evicted, resumed, read from bases, forgotten and limited like every row."""

import numpy as np
import pytest

from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.spill_gc import SpillGC
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.collection import EmbeddingCollection
from springtide_client.keys import CROSSES
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.app.training.configs import make_config
from tests.app.training.random_clicks import make_batch
from tests.app.training.state.test_training_state import assert_same, end, learn, snapshot

MODEL = '[model]\nname = "deepfm"\nwide = true\ncrosses = 3\n'
SETTINGS = {
    "alone": ("", MODEL),
    "beside dim2": ("", "[features.genres]\ndim = 2\n" + MODEL),
    "custom": ('eviction = "custom"\nscore = "age"\ndtype = "bfloat16"', MODEL),
    "admission": ("admission = { min_count = 3, sketch_bytes = 2048 }", MODEL),
}


def crosses_of(state) -> tuple[np.ndarray, dict[int, bytes]]:
    """The ids of crosses in memory, and their rows."""
    table = state.learner.table.tables["crosses"]
    ids = np.unique(table.export().ids)
    rows, status = table.find(np.full(len(ids), CROSSES, np.uint16), ids)
    assert not (rows.view(np.uint32) == 1 << 31).any()  # -0.0
    return ids, {row_id: row.tobytes() for row_id, row, s in zip(ids.tolist(), rows, status, strict=True) if s == 0}


@pytest.mark.parametrize(("table", "more"), SETTINGS.values(), ids=list(SETTINGS))
def test_an_interrupted_run_resumes_bitwise(tmp_path, table, more):
    config = make_config(tmp_path / "whole", "64KiB", more, table)
    whole_log = LogWriter.open(config.log, schema=config.schema)
    whole = load_state(config, whole_log)
    assert isinstance(whole.learner.table, EmbeddingCollection)
    learn(whole, whole_log, range(18))
    assert whole.learner.table.tables["crosses"].counters()["recalled_from_spill"] > 0

    config = make_config(tmp_path / "interrupted", "64KiB", more, table)
    for start, stop in [(0, 8), (6, 18)]:  # what came after the newest version is learned again
        log = LogWriter.open(config.log, schema=config.schema)
        state = load_state(config, log)
        assert state.samples_trained == start * 32
        learn(state, log, range(start, stop), ahead=True)
        if stop < 18:
            end(state, log)
    assert_same(snapshot(state), snapshot(whole))
    ids, mine = crosses_of(state)
    rows, status = whole.learner.table.find(np.full(len(ids), CROSSES, np.uint16), ids)
    assert not status.any()
    assert mine == {row_id: row[:2].tobytes() for row_id, row in zip(ids.tolist(), rows, strict=True)}
    end(state, log)
    end(whole, whole_log)
    assert not verify(LogDirectory(config.log.path)).errors


def test_bases_hold_the_crosses_and_servers_read_the_same(tmp_path):
    config = make_config(tmp_path, "64KiB", MODEL)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    table = state.learner.table
    generations = SpillGC(table.tables, log.directory, state.base_number, on_mapped=state.on_base_mapped)
    for number in range(16):
        state.learn(make_batch(number))
        generations.on_checkpoint(log.append(*state.checkpoint(created_ms=1, complete_until_ms=1)).number)
        log.sync()
        if number % 4 == 3:
            assert compact_log(log.directory, window_samples=100) is not None
            assert generations.map_newest_base(log.last_encoded.number)
    counters = table.tables["crosses"].counters()
    assert min(counters["recalled_from_base"], counters["recalled_from_spill"]) > 0, counters
    directory = LogDirectory(config.log.path)
    base = directory.open_base()
    assert base is not None
    layer = base.tables["crosses"].layer
    assert set(layer.feature.tolist()) == {CROSSES}
    assert layer.value.shape == (len(layer), 2)
    assert not (base.main.rows.feature == CROSSES).any()
    view = View.open(directory.newest_base())
    for record in directory.records(view.tip):
        view = view.apply(record)
    ids, rows = crosses_of(state)
    served = view.model_rows.cross_rows(ids)
    assert {row_id: row.tobytes() for row_id, row in zip(ids.tolist(), served, strict=True)} == rows
    assert view.dim == table.dim == 4
    end(state, log)


def test_limits_clocks_and_forgotten_ids_reach_the_crosses(tmp_path):
    config = make_config(tmp_path, "1MiB", MODEL)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    learn(state, log, range(7))
    table = state.learner.table
    assert sorted(path.name for path in (tmp_path / "spill" / str(log.epoch)).iterdir()) == ["crosses", "main"]
    ids, _ = crosses_of(state)
    table.forget(np.full(2, CROSSES, np.uint16), ids[:2])
    state.change_limits({(None, "device_bytes"): 2 << 20, (None, "lr"): 0.5})
    assert [one.config.device_bytes for one in table.tables.values()] == [1 << 20, 1 << 20]
    assert [one.lr for one in table.tables.values()] == [0.5, 0.0]
    assert table.bytes_by_tier()["device"] <= 2 << 20
    meta, arrays = state.checkpoint(created_ms=1, complete_until_ms=1)
    assert arrays["forgotten.feature"].tolist() == [CROSSES] * 2
    assert "rows.value" in arrays
    assert arrays["crosses/rows.value"].shape[1] == 2
    assert "crosses/rows.state" not in arrays
    log.append(meta, arrays)
    end(state, log)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    table = state.learner.table
    assert [one.config.device_bytes for one in table.tables.values()] == [1 << 20, 1 << 20]
    assert (table.find(np.full(2, CROSSES, np.uint16), ids[:2])[1] != 0).all()
    assert not table.find(np.full(2, CROSSES, np.uint16), ids[2:4])[1].any()
    end(state, log)


@pytest.mark.parametrize("edit", [("crosses = 3", "crosses = 0"), ("wide = true", "wide = false")])
def test_without_crosses_there_is_one_table(tmp_path, edit):
    config = make_config(tmp_path, "1MiB", MODEL.replace(*edit))
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    assert not isinstance(state.learner.table, EmbeddingCollection)
    end(state, log)


def test_the_crosses_take_their_share_beside_the_admission_sketch(tmp_path):
    table = "admission = { min_count = 2, sketch_bytes = 1_048_576 }"
    config = make_config(tmp_path, "1104KiB", MODEL, table)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    shares = [one.config.device_bytes for one in state.learner.table.tables.values()]
    assert shares == [(1024 + 40) << 10, 40 << 10]
    learn(state, log, range(3))
    end(state, log)
