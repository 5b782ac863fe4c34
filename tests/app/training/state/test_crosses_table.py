"""Crosses in a table of their own: evicted, resumed, read from bases, forgotten and limited like every row."""

import numpy as np
import pytest

from springtide.app.version_log.verify.verify import verify
from springtide.embeddings.collection import EmbeddingCollection
from springtide_client.keys import CROSSES
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.state.test_training_state import assert_same, learn_beside_a_compactor, snapshot
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog

MODEL = {"model": {"name": "deepfm", "wide": True, "crosses": 3}}
SETTINGS = {
    "alone": {},
    "beside dim2": {"features": {"genres": {"dim": 2}}},
    "custom": {"table": {"eviction": "custom", "score": "age", "dtype": "bfloat16"}},
    "admission": {"table": {"admission": {"min_count": 3, "sketch_bytes": 2048}}},
}


def log_of(folder, device_bytes: str, *layers: Section) -> LearnedLog:
    return LearnedLog(config_in(folder, RANDOM_CLICKS, MODEL, {"table": {"device_bytes": device_bytes}}, *layers))


def crosses_of(state) -> tuple[np.ndarray, dict[int, bytes]]:
    """The ids of crosses in memory, and their rows."""
    table = state.learner.table.tables["crosses"]
    ids = np.unique(table.export().id)
    rows, status = table.find(np.full(len(ids), CROSSES, np.uint16), ids)
    assert not (rows.view(np.uint32) == 1 << 31).any()  # -0.0
    return ids, {row_id: row.tobytes() for row_id, row, s in zip(ids.tolist(), rows, status, strict=True) if s == 0}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_an_interrupted_run_resumes_bitwise(tmp_path, settings):
    whole = log_of(tmp_path / "whole", "64KiB", settings)
    assert isinstance(whole.state.learner.table, EmbeddingCollection)
    whole.learn(range(18), every=3)
    assert whole.state.learner.table.tables["crosses"].counters()["recalled_from_spill"] > 0
    run = log_of(tmp_path / "interrupted", "64KiB", settings)
    for start, stop in [(0, 8), (6, 18)]:  # what came after the newest version is learned again
        if start:
            run.restart()
        assert run.state.samples_trained == start * 32
        run.learn(range(start, stop), every=3, ahead=True)
    assert_same(snapshot(run.state), snapshot(whole.state))
    ids, mine = crosses_of(run.state)
    rows, status = whole.state.learner.table.find(np.full(len(ids), CROSSES, np.uint16), ids)
    assert not status.any()
    assert mine == {row_id: row[:2].tobytes() for row_id, row in zip(ids.tolist(), rows, strict=True)}
    run.end()
    whole.end()
    assert not verify(run.directory).errors


def test_bases_hold_the_crosses_and_servers_read_the_same(tmp_path):
    with log_of(tmp_path, "64KiB") as run:
        table = run.state.learner.table
        learn_beside_a_compactor(run, 16, on_mapped=run.state.on_base_mapped)
        counters = table.tables["crosses"].counters()
        assert min(counters["recalled_from_base"], counters["recalled_from_spill"]) > 0, counters
        base = run.directory.open_base()
        assert base is not None
        layer = base.tables["crosses"].layer
        assert set(layer.feature.tolist()) == {CROSSES}
        assert layer.value.shape == (len(layer), 2)
        assert not (base.main.rows.feature == CROSSES).any()
        view = run.view()
        ids, rows = crosses_of(run.state)
        served = view.model_rows.cross_rows(ids)
        assert {row_id: row.tobytes() for row_id, row in zip(ids.tolist(), served, strict=True)} == rows
        assert view.dim == table.dim == 4


def test_limits_clocks_and_forgotten_ids_reach_the_crosses(tmp_path):
    with log_of(tmp_path, "1MiB") as run:
        run.learn(range(7), every=3)
        table = run.state.learner.table
        spill = tmp_path / "spill" / str(run.log.epoch)
        assert sorted(path.name for path in spill.iterdir()) == ["crosses", "main"]
        ids, _ = crosses_of(run.state)
        table.forget(np.full(2, CROSSES, np.uint16), ids[:2])
        run.state.change_limits({(None, "device_bytes"): 2 << 20, (None, "lr"): 0.5})
        assert [one.config.device_bytes for one in table.tables.values()] == [1 << 20, 1 << 20]
        assert [one.lr for one in table.tables.values()] == [0.5, 0.0]
        assert table.bytes_by_tier()["device"] <= 2 << 20
        meta, arrays = run.state.checkpoint(created_ms=1, complete_until_ms=1)
        assert arrays["forgotten.feature"].tolist() == [CROSSES] * 2
        assert "rows.value" in arrays
        assert arrays["crosses/rows.value"].shape[1] == 2
        assert "crosses/rows.state" not in arrays
        run.log.append(meta, arrays)
        run.restart()
        table = run.state.learner.table
        assert [one.config.device_bytes for one in table.tables.values()] == [1 << 20, 1 << 20]
        assert (table.find(np.full(2, CROSSES, np.uint16), ids[:2])[1] != 0).all()
        assert not table.find(np.full(2, CROSSES, np.uint16), ids[2:4])[1].any()


@pytest.mark.parametrize("changes", [{"crosses": 0}, {"wide": False}], ids=str)
def test_without_crosses_there_is_one_table(tmp_path, changes):
    with log_of(tmp_path, "1MiB", {"model": changes}) as run:
        assert not isinstance(run.state.learner.table, EmbeddingCollection)


def test_the_crosses_take_their_share_beside_the_admission_sketch(tmp_path):
    admission = {"min_count": 2, "sketch_bytes": 1_048_576}
    with log_of(tmp_path, "1104KiB", {"table": {"admission": admission}}) as run:
        shares = [one.config.device_bytes for one in run.state.learner.table.tables.values()]
        assert shares == [(1024 + 40) << 10, 40 << 10]
        run.learn(range(3), every=3)
