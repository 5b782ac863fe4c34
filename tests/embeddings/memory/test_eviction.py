"""Which rows are evicted, and when memory grows or shrinks."""

from pathlib import Path

import numpy as np
import pytest

from springtide.embeddings.config import TableLimits
from springtide.embeddings.errors import SpillError
from springtide.embeddings.lookup.materialize import FORGOTTEN, KNOWN
from springtide.embeddings.memory import eviction
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.ops import Ops
from tests.embeddings.backends import is_emulated
from tests.embeddings.small_tables import DIM, learn, make, status
from tests.embeddings.tiers.flaky_spill import FlakySpill


def test_lru_evicts_the_least_recently_looked_up(ops: Ops) -> None:
    table, width = make(device=ops), ops.width
    for ids in ([0], [1], [2], range(3, width)):
        learn(table, ids)
    learn(table, [0])
    learn(table, [1000, 1001])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [1, 2]


def test_lfu_evicts_the_least_often_updated(ops: Ops) -> None:
    table, width = make(eviction="lfu", device=ops), ops.width
    learn(table, [5, 9, *np.repeat([id_ for id_ in range(width) if id_ not in (5, 9)], 3)])
    learn(table, [1000])
    learn(table, [1001, 1002])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [5, 9]


def test_lfu_counts_survive_a_spill(tmp_path: Path, ops: Ops) -> None:
    table = make(eviction="lfu", spill=RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops)
    zero, width = (np.zeros(1, np.uint16), np.array([7])), ops.width
    learn(table, [7] * 50)
    learn(table, np.repeat(np.arange(1000, 1000 + width), 60))  # all of them with higher counts
    assert int(table.memory.find(*zero)[0]) < 0
    table.forget(np.zeros(width, np.uint16), np.arange(1000, 1000 + width))
    table.lookup(*zero, np.zeros(1, np.int64)).release()  # fetched, not updated
    learn(table, np.repeat(np.arange(2000, 2000 + width - 1), 5))
    learn(table, [3000])
    assert int(table.memory.find(*zero)[0]) >= 0
    table.close()


def test_lfu_does_not_count_lookups_without_an_update(ops: Ops) -> None:
    table, width = make(eviction="lfu", device=ops), ops.width
    learn(table, np.repeat(np.arange(width), 2))
    for _ in range(3):
        table.lookup(np.zeros(1, np.uint16), np.array([3]), np.zeros(1, np.int64)).release()
    learn(table, [4])
    learn(table, np.arange(1000, 1000 + width - 1))  # all but one are evicted
    assert status(table, [3, 4]) == [FORGOTTEN, KNOWN]


def test_custom_eviction_evicts_the_lowest_score(ops: Ops) -> None:
    table, width = make(eviction="custom", device=ops), ops.width
    learn(table, [6, *range(width)], scores=[1000, *(-1.5 if id_ == 6 else id_ for id_ in range(width))])
    learn(table, [1000], scores=[500])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [6]
    with pytest.raises(ValueError, match="score"):
        learn(table, [1])
    with pytest.raises(ValueError, match="score"):
        learn(make(device=ops), [1], scores=[1])


def test_an_eviction_is_premature_if_the_row_is_looked_up_soon_after(
    tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "PREMATURE_LOOKUPS", 20)
    table, width = make(spill=RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops), ops.width
    learn(table, range(width))
    learn(table, range(width, 2 * width))
    assert table.counters()["premature_evictions"] == 0
    learn(table, [3])
    assert table.counters()["premature_evictions"] == 1
    learn(table, range(1000, 1000 + width))
    for _ in range(21):
        table.lookup(np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.int64)).release()
    learn(table, [3])
    assert table.counters()["premature_evictions"] == 1
    table.close()


def test_a_table_has_room_once_the_spill_has_taken_what_it_refused(tmp_path: Path, ops: Ops) -> None:
    spill = FlakySpill(RocksSpill(tmp_path / "spill", dim=DIM, state_width=1, queue_bytes=1 << 16))
    table, width = make(spill=spill, device=ops), ops.width
    learn(table, range(width))
    assert table.has_room(1000)
    spill.broken = True
    with pytest.raises(SpillError):
        learn(table, range(1000, 1000 + width))  # evicts rows, which nobody takes
    assert not table.has_room(0)
    spill.broken = False
    assert table.has_room(1)
    learn(table, [1])
    table.close()


def test_resizing_under_load_loses_no_row(tmp_path: Path, ops: Ops) -> None:
    part = 16 if is_emulated(ops) else 1
    bytes_of = {"4MiB": 4 * 2**20 // part, "512KiB": 2**19 // part, "2MiB": 2**21 // part, "1MiB": 2**20 // part}
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = make(None, spill, device=ops, device_bytes=bytes_of["1MiB"])
    small = table.memory.store.num_slots
    rng = np.random.default_rng(0)
    learned = np.zeros(30_000 // part, np.int64)
    for size in bytes_of.values():
        for _ in range(2 if is_emulated(ops) else 4):
            ids = rng.integers(0, len(learned), 3000 // part)
            learn(table, ids)
            learned += np.bincount(ids, minlength=len(learned))
            table.take_delta()
        held = table.lookup(np.zeros(1, np.uint16), np.zeros(1, np.int64), np.zeros(1, np.int64))
        with pytest.raises(ValueError, match="open"):
            table.set_limits(TableLimits(device_bytes=size))
        held.release()
        table.set_limits(TableLimits(device_bytes=size))
        table.check_integrity()
        assert table.bytes_by_tier()["device"] <= size
    assert table.memory.store.num_slots == small
    assert table.counters()["evicted_resize"] > 0
    rows = table.export()
    counts = np.zeros_like(learned)
    counts[rows.id] = rows.count
    np.testing.assert_array_equal(counts, learned)
    table.close()


def test_shrinking_frees_an_enlarged_overflow_area(tmp_path: Path, ops: Ops) -> None:
    num_bytes = 2**17 if is_emulated(ops) else 2**22
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = make(None, spill, device=ops, device_bytes=num_bytes)
    learn(table, range(num_bytes // 40))
    assert table.bytes_by_tier()["device"] > num_bytes
    table.take_delta()
    table.set_limits(TableLimits(device_bytes=num_bytes // 4))
    table.take_delta()
    assert table.bytes_by_tier()["device"] <= num_bytes // 4
    table.check_integrity()
    table.close()
