"""Whether the resident tier contradicts itself: for tests and for who suspects a bug. Reads everything."""

import numpy as np

from embeddings.memory.resident import ResidentRows
from kernels.types import DIRTY, RowColumns


def check_integrity(memory: ResidentRows, known_touched: set[int] | None) -> None:
    """AssertionError where index and rows contradict each other, or a touched slot is not among the known."""
    ops, store = memory.ops, memory.store
    memory.eviction_sink.drain_inflight()
    there_N = memory.occupied()
    keys = ops.keys_of(store, there_N)
    slots_N, found_N, features_N = ops.fetch(there_N, memory.find(*keys), keys[0])
    assert np.array_equal(found_N, slots_N), "a key is not found where it stands"
    assert len(slots_N) == memory.num_rows, f"{len(slots_N)} keys stand, {memory.num_rows} are counted"
    assert np.count_nonzero(slots_N >= store.num_slots) <= memory.max_in_overflow, "the overflow is miscounted"
    columns = RowColumns(*ops.fetch(*ops.read(store, there_N)))
    touched = set(slots_N[(columns.flags_N & DIRTY) != 0].tolist())
    assert known_touched is None or touched <= known_touched, f"touched, and nobody knows: {touched - known_touched}"
    assert np.isfinite(columns.values_ND).all(), "a row is not finite"
    assert np.isfinite(columns.states_NS).all(), "an optimizer state is not finite"
    assert (columns.counts_N >= 0).all(), "a row was seen less than never"
    if memory.quotas:
        counted_F = np.bincount(features_N, minlength=len(memory.quotas.rows_F))
        assert np.array_equal(counted_F, memory.quotas.rows_F), "rows by feature are miscounted"
