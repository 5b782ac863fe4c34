"""Features with rows of another width or optimizer: several tables under one log, through restarts, bases and views."""

import numpy as np
import pytest
import torch

from springtide.app.config.load import Config
from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.spill_gc import SpillGC
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.collection import EmbeddingCollection
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.app.training.configs import NET_ALONE, make_config
from tests.app.training.random_clicks import make_batch
from tests.app.training.state.test_training_state import assert_same, end, learn, snapshot

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
TIGHT = 'admission = { sketch_bytes = 2048, decay_every_samples = 150 }\neviction = "lfu"'


def config_of(folder, device_bytes: str = "128KiB") -> Config:
    return make_config(folder, device_bytes, NET_ALONE + TABLES, TIGHT)


def test_an_interrupted_run_resumes_bitwise(tmp_path):
    config = config_of(tmp_path / "whole")
    whole_log = LogWriter.open(config.log, schema=config.schema)
    whole = load_state(config, whole_log)
    table = whole.learner.table
    assert isinstance(table, EmbeddingCollection)
    assert list(table.tables) == ["", "dim2-adam", "dim3"]
    learn(whole, whole_log, range(30))

    config = config_of(tmp_path / "interrupted")
    for start, stop in [(0, 11), (9, 20), (18, 30)]:  # what came after the newest version is learned again
        log = LogWriter.open(config.log, schema=config.schema)
        state = load_state(config, log)
        assert state.samples_trained == start * 32
        learn(state, log, range(start, stop), ahead=True)
        if stop < 30:
            end(state, log)
    assert_same(snapshot(state), snapshot(whole))
    ours, theirs = state.meta(0), whole.meta(0)
    assert (ours.scores, ours.trainer, ours.expiry_cutoffs) == (theirs.scores, theirs.trainer, theirs.expiry_cutoffs)
    end(state, log)
    end(whole, whole_log)


def test_mapping_a_base_changes_no_row_and_followers_read_the_same(tmp_path):
    """Run as the trainer does, with a compactor that makes a base every few versions."""
    config = config_of(tmp_path / "whole", "40KiB")
    whole_log = LogWriter.open(config.log, schema=config.schema)
    whole = load_state(config, whole_log)
    learn(whole, whole_log, range(24))

    config = config_of(tmp_path / "merged", "40KiB")
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    table = state.learner.table
    generations = SpillGC(table.tables, log.directory, state.base_number, on_mapped=state.on_base_mapped)
    for number in range(24):
        state.learn(make_batch(number))
        generations.on_checkpoint(log.append(*state.checkpoint(created_ms=1, complete_until_ms=1)).number)
        log.sync()
        if number % 4 == 3:
            assert compact_log(log.directory, window_samples=100) is not None
            assert generations.map_newest_base(log.last_encoded.number)
    counters = table.counters()
    needed = ("recalled_from_base", "recalled_from_spill", "expired", "not_admitted")
    assert min(counters[name] for name in needed) > 0, counters
    assert_same(snapshot(state), snapshot(whole))

    directory = LogDirectory(config.log.path)
    view = View.open(directory.newest_base())
    for record in directory.records(view.tip):
        view = view.apply(record)
    features = np.repeat(np.arange(3, dtype=np.uint16), 2000)
    ids = np.tile(np.arange(2000), 3)
    (mine, status), theirs = table.find(features, ids), view.rows_for_model(features, ids)
    known = status == 0
    np.testing.assert_array_equal(theirs[1] == 0, known)
    np.testing.assert_array_equal(theirs[0][known], mine[known])
    assert not mine[known & (features == 1)][:, 3:].any()
    assert {1, 2} <= set(features[known].tolist())
    assert view.dim == table.dim == 4
    end(state, log)
    end(whole, whole_log)


def test_ids_are_forgotten_and_limits_kept_in_every_table(tmp_path):
    config = config_of(tmp_path)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    learn(state, log, range(6))
    table = state.learner.table
    features = np.arange(3, dtype=np.uint16)
    ids = np.array(
        [int(one.take(np.arange(1)).ids[0]) for one in map(exported, (table.tables[""], table.tables["dim3"]))]
    )
    table.forget(features[:2], ids)
    state.change_limits({(None, "lr"): 0.5, ("genres", "min_count"): 7, (None, "device_bytes"): 256 << 10})
    assert [one.lr for one in table.tables.values()] == [0.5, 0.01, 0.5]
    meta, arrays = state.checkpoint(created_ms=1, complete_until_ms=1)
    assert arrays["forgotten.feature"].tolist() == [0, 1]
    assert meta.admission == {"2": 7}
    log.append(meta, arrays)
    end(state, log)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    table = state.learner.table
    assert [one.lr for one in table.tables.values()] == [0.5, 0.01, 0.5]
    assert (table.find(features[:2], ids)[1] != 0).all()
    end(state, log)


def exported(table):
    rows = table.export()
    return rows.take(rows.features < 3)


def test_a_feature_moves_to_another_table_with_its_rows_where_they_fit(tmp_path):
    config = config_of(tmp_path)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    learn(state, log, range(9))
    before = snapshot(state)
    end(state, log)
    # the users' rows stay, the items get the table's width and begin with first values
    config = make_config(tmp_path, "128KiB", NET_ALONE + TABLES.replace("dim = 3\n", ""), TIGHT)
    log = LogWriter.open(config.log, schema=config.schema)
    torch.manual_seed(0)
    state = load_state(config, log)
    assert list(state.learner.table.tables) == ["", "dim2-adam"]
    after = snapshot(state)
    users, genres = slice(0, 2000), slice(4000, 6000)
    for part in (users, genres):
        np.testing.assert_array_equal(after["rows"][part], before["rows"][part])
    known = (after["status"] == 0)[2000:4000]
    assert known.any()
    assert after["rows"][2000:4000][known][:, 3].any()
    learn(state, log, range(9, 12))
    end(state, log)


@pytest.mark.parametrize("device_bytes", ["128KiB", "8MiB"])
def test_the_tables_share_the_memory(tmp_path, device_bytes):
    config = config_of(tmp_path, device_bytes)
    log = LogWriter.open(config.log, schema=config.schema)
    state = load_state(config, log)
    table = state.learner.table
    assert table.bytes_by_tier()["device"] <= config.table.device_bytes
    assert sorted(path.name for path in (tmp_path / "spill" / str(log.epoch)).iterdir()) == [
        "dim2-adam",
        "dim3",
        "main",
    ]
    end(state, log)
    assert not list((tmp_path / "spill").iterdir())
