"""Checks that the resident tier does not contradict itself: for tests and for debugging. Reads every row."""

import numpy as np

from springtide.embeddings.memory.resident import ResidentRows
from springtide.kernels.types import DIRTY, RowColumns


def check_integrity(memory: ResidentRows, listed_dirty: set[int] | None) -> None:
    """AssertionError if index and rows contradict each other, or if a dirty slot is not in `listed_dirty`."""
    ops, store = memory.ops, memory.store
    memory.eviction_sink.drain_inflight()
    occupied_N = memory.occupied()
    keys = ops.keys_of(store, occupied_N)
    slots_N, found_N, features_N = ops.fetch(occupied_N, memory.find(*keys), keys[0])
    assert np.array_equal(found_N, slots_N), "a key is not found in its slot"
    assert len(slots_N) == memory.num_rows, f"{len(slots_N)} slots are occupied, {memory.num_rows} rows are counted"
    assert np.count_nonzero(slots_N >= store.num_slots) <= memory.max_in_overflow, "too many rows in the overflow area"
    columns = RowColumns(*ops.fetch(*ops.read(store, occupied_N)))
    dirty = set(slots_N[(columns.flags_N & DIRTY) != 0].tolist())
    assert listed_dirty is None or dirty <= listed_dirty, f"dirty slots are not listed: {dirty - listed_dirty}"
    assert np.isfinite(columns.values_ND).all(), "a row is not finite"
    assert np.isfinite(columns.states_NS).all(), "an optimizer state is not finite"
    assert (columns.counts_N >= 0).all(), "a count is negative"
    if memory.quotas:
        counted_F = np.bincount(features_N, minlength=len(memory.quotas.rows_F))
        assert np.array_equal(counted_F, memory.quotas.rows_F), "the rows of a feature are miscounted"
