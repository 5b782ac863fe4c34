"""Prefetched rows equal those fetched at once, and are dropped when they may be outdated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from springtide.embeddings.config import FeaturePolicy, TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import IN_BASE
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.ops import Ops
from tests.embeddings.backends import host
from tests.embeddings.small_tables import BUCKET, DIM, learn, make


def test_prefetched_rows_equal_rows_fetched_at_once(tmp_path: Path, ops: Ops) -> None:
    rows, width = [], ops.width
    for ahead in (False, True):
        table = make(spill=RocksSpill(tmp_path / str(ahead), dim=DIM, state_width=1), device=ops)
        for start in (0, width, 2 * width):
            learn(table, range(start, start + width))
        keys = np.zeros(16, np.uint16), np.arange(16), np.zeros(16, np.int64)
        prefetched = table.prefetch(*keys) if ahead else None
        lookup = table.lookup(*keys, prefetched=prefetched)
        rows.append(host(table.gather(lookup)).copy())
        assert table.counters()["prefetched"] == (16 if ahead else 0)
        assert table.counters()["recalled_from_spill"] == 16
        lookup.release()
        with pytest.raises(ValueError, match="prefetched"):
            table.lookup(*(array.copy() for array in keys), prefetched=table.prefetch(*keys))
        table.close()
    np.testing.assert_array_equal(*rows)


def test_a_prefetch_does_not_restore_a_forgotten_row(tmp_path: Path, ops: Ops) -> None:
    table = make(spill=RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops)
    for start in (0, ops.width):
        learn(table, range(start, start + ops.width))
    keys = np.zeros(3, np.uint16), np.arange(3), np.zeros(3, np.int64)
    prefetched = table.prefetch(*keys)
    table.forget(np.zeros(1, np.uint16), np.array([1]))
    table.update(table.lookup(*keys, prefetched=prefetched), np.zeros((3, DIM), np.float32))
    delta = table.take_delta()
    counts = dict(zip(delta.rows.id.tolist(), delta.rows.count.tolist(), strict=True))
    assert (counts[0], counts[1], counts[2]) == (2, 1, 2)
    table.close()


class OneRow:
    """A base that has only id 1, with this count."""

    def __init__(self, count: int) -> None:
        self.count = count

    def find(self, features_U: Any, ids_U: Any) -> FoundRows:
        found = FoundRows.nothing(features_U, ids_U, DIM, 1)
        found.rows.count[:] = self.count
        found.kinds_U[ids_U == 1] = IN_BASE
        return found


def test_mapping_a_base_invalidates_a_prefetch(tmp_path: Path, ops: Ops) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = EmbeddingTable(TableConfig(dim=DIM), seed=0, spill=spill, base=OneRow(5), capacity=BUCKET, device=ops)
    keys = np.zeros(1, np.uint16), np.ones(1, np.int64), np.zeros(1, np.int64)
    generation = table.open_generation()
    prefetched = table.prefetch(*keys)
    table.map_base(OneRow(7), generation)
    table.update(table.lookup(*keys, prefetched=prefetched), np.zeros((1, DIM), np.float32))
    assert table.take_delta().rows.count.tolist() == [8]
    table.close()


def test_sweeps_and_quotas_do_not_invalidate_a_prefetch(tmp_path: Path, ops: Ops) -> None:
    table = make(
        Capacity.of_rows(64),
        RocksSpill(tmp_path / "spill", dim=DIM, state_width=1),
        device=ops,
        features={1: FeaturePolicy(ttl_seconds=1), 2: FeaturePolicy(quota_bytes="1KiB")},
    )
    for start in range(0, 400, 40):
        learn(table, range(start, start + 40), at_ms=start)
    keys = np.zeros(20, np.uint16), np.arange(20), np.zeros(20, np.int64)
    learn(table, range(30), feature=1, at_ms=500)
    prefetched = table.prefetch(*keys)
    for _ in range(64):
        table.advance(9_000, 0)
    table.memory.enforce_quotas()
    assert table.counters()["expired"] > 0
    table.lookup(*keys, prefetched=prefetched).release()
    assert table.counters()["prefetched"] == 20
    table.close()


def test_tiers_that_hold_nothing_are_not_read_and_counted_alike(tmp_path: Path, ops: Ops) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=1)
    table = make(spill=spill, device=ops)
    read = spill.find
    keys = np.zeros(3, np.uint16), np.arange(3), np.zeros(3, np.int64)
    spill.find = None  # type: ignore[assignment, method-assign]
    prefetched = table.prefetch(*keys)
    table.update(table.lookup(*keys, prefetched=prefetched), np.zeros((3, DIM), np.float32))
    learn(table, range(3, 5))
    assert table.lower_tiers._executor is None
    counts = table.counters()
    assert (counts["created"], counts["prefetched"]) == (5, 3)
    assert (counts["spill_lookups"], counts["spill_filter_negatives"]) == (5, 5)
    spill.find = read  # type: ignore[method-assign]
    table.forget(np.zeros(1, np.uint16), np.zeros(1, np.int64))  # a tombstone hides nothing, but is there
    learn(table, range(1))
    assert table.counters()["spill_lookups"] == 6
    table.close()
