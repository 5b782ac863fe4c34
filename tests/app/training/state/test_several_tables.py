"""Features with rows of another width or optimizer: several tables under one log, through restarts, bases and views."""

import numpy as np
import pytest
import torch

from springtide.app.config.load import Config
from springtide.embeddings.collection import EmbeddingCollection
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.app.training.state.test_training_state import LFU, assert_same, learn_beside_a_compactor, snapshot
from tests.support.config import NET_ALONE, config_in
from tests.support.learned_log import LearnedLog

TABLES = """
[features.item_id]
dim = 3
ttl_seconds = 0.2
[features.genres]
dim = 2
optimizer = { name = "adam", lr = 0.01 }
admission = { min_count = 5 }
pooling = "max"
"""


def config_of(folder, device_bytes: str = "128KiB", *more) -> Config:
    return config_in(folder, RANDOM_CLICKS, NET_ALONE, LFU, TABLES, {"table": {"device_bytes": device_bytes}}, *more)


def test_an_interrupted_run_resumes_bitwise(tmp_path):
    whole = LearnedLog(config_of(tmp_path / "whole"))
    table = whole.state.learner.table
    assert isinstance(table, EmbeddingCollection)
    assert list(table.tables) == ["", "dim2-adam", "dim3"]
    whole.learn(range(30), every=3)
    run = LearnedLog(config_of(tmp_path / "interrupted"))
    run.learn_interrupted()
    assert_same(snapshot(run.state), snapshot(whole.state))
    ours, theirs = run.state.meta(0), whole.state.meta(0)
    assert (ours.scores, ours.trainer, ours.expiry_cutoffs) == (theirs.scores, theirs.trainer, theirs.expiry_cutoffs)
    run.end()
    whole.end()


def test_mapping_a_base_changes_no_row_and_followers_read_the_same(tmp_path):
    whole = LearnedLog(config_of(tmp_path / "whole", "40KiB"))
    whole.learn(range(24), every=3)
    run = LearnedLog(config_of(tmp_path / "merged", "40KiB"))
    table = run.state.learner.table
    learn_beside_a_compactor(run, 24, on_mapped=run.state.on_base_mapped)
    counters = table.counters()
    needed = ("recalled_from_base", "recalled_from_spill", "expired", "not_admitted")
    assert min(counters[name] for name in needed) > 0, counters
    assert_same(snapshot(run.state), snapshot(whole.state))

    view = run.view()
    features = np.repeat(np.arange(3, dtype=np.uint16), 2000)
    ids = np.tile(np.arange(2000), 3)
    (mine, status), theirs = table.find(features, ids), view.rows_for_model(features, ids)
    known = status == 0
    np.testing.assert_array_equal(theirs[1] == 0, known)
    np.testing.assert_array_equal(theirs[0][known], mine[known])
    assert not mine[known & (features == 1)][:, 3:].any()
    assert {1, 2} <= set(features[known].tolist())
    assert view.dim == table.dim == 4
    run.end()
    whole.end()


def test_ids_are_forgotten_and_limits_kept_in_every_table(tmp_path):
    with LearnedLog(config_of(tmp_path)) as run:
        run.learn(range(6), every=3)
        table = run.state.learner.table
        features = np.arange(3, dtype=np.uint16)
        ids = np.array(
            [int(one.take(np.arange(1)).id[0]) for one in map(exported, (table.tables[""], table.tables["dim3"]))]
        )
        table.forget(features[:2], ids)
        run.state.change_limits({(None, "lr"): 0.5, ("genres", "min_count"): 7, (None, "device_bytes"): 256 << 10})
        assert [one.lr for one in table.tables.values()] == [0.5, 0.01, 0.5]
        meta, arrays = run.state.checkpoint(created_ms=1, complete_until_ms=1)
        assert arrays["forgotten.feature"].tolist() == [0, 1]
        assert meta.admission == {"2": 7}
        run.log.append(meta, arrays)
        run.restart()
        table = run.state.learner.table
        assert [one.lr for one in table.tables.values()] == [0.5, 0.01, 0.5]
        assert (table.find(features[:2], ids)[1] != 0).all()


def exported(table):
    rows = table.export()
    return rows.take(rows.feature < 3)


def test_a_feature_moves_to_another_table_with_its_rows_where_they_fit(tmp_path):
    with LearnedLog(config_of(tmp_path)) as run:
        run.learn(range(9), every=3)
        before = snapshot(run.state)
    torch.manual_seed(0)
    # the users' rows stay, the items get the table's width and begin with first values
    with LearnedLog(config_of(tmp_path, "128KiB", {"features": {"item_id": {"dim": None}}})) as run:
        assert list(run.state.learner.table.tables) == ["", "dim2-adam"]
        after = snapshot(run.state)
        users, genres = slice(0, 2000), slice(4000, 6000)
        for part in (users, genres):
            np.testing.assert_array_equal(after["rows"][part], before["rows"][part])
        known = (after["status"] == 0)[2000:4000]
        assert known.any()
        assert after["rows"][2000:4000][known][:, 3].any()
        run.learn(range(9, 12), every=3)


@pytest.mark.parametrize("device_bytes", ["128KiB", "8MiB"])
def test_the_tables_share_the_memory(tmp_path, device_bytes):
    with LearnedLog(config_of(tmp_path, device_bytes)) as run:
        assert run.state.learner.table.bytes_by_tier()["device"] <= run.config.table.device_bytes
        assert sorted(path.name for path in (tmp_path / "spill" / str(run.log.epoch)).iterdir()) == [
            "dim2-adam",
            "dim3",
            "main",
        ]
    assert not list((tmp_path / "spill").iterdir())
