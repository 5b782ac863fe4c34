"""Bulk operations: writing rows that do not come from training, forgetting, resizing, exporting, checking itself."""

# N rows
import numpy as np

from springtide.embeddings.eviction_policy import Priorities
from springtide.embeddings.memory.dirty_rows import DirtyRows
from springtide.embeddings.memory.resident import ResidentRows
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import Int64Array, UInt16Array, as_keys
from springtide.embeddings.tiers.lower_tiers import LowerTiers
from springtide.kernels.types import DIRTY, NO_SLOT, RowColumns
from springtide_client.rows.row_block import RowBlock

WRITTEN_ROWS_PER_STEP = 65536


class BulkOperations:
    """Writes, forgets and exports rows, wherever they are. Moves resident rows to another number of slots."""

    def __init__(
        self,
        memory: ResidentRows,
        lower_tiers: LowerTiers,
        dirty_rows: DirtyRows,
        cutoffs: ExpiryCutoffs,
        priorities: Priorities,
    ) -> None:
        self.memory, self.lower_tiers, self.dirty_rows, self.cutoffs = memory, lower_tiers, dirty_rows, cutoffs
        self.priorities = priorities

    def write(self, rows: RowBlock, flags: int) -> None:
        """Write these rows over what the table has of their keys. SpillError between steps."""
        # the rows of a step are all pinned at once: few enough that most of them find a slot
        step = min(WRITTEN_ROWS_PER_STEP, max(self.memory.ops.width, self.memory.store.num_slots // 2))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            features_N, ids_N, last_seen_N = as_keys(rows.feature[part], rows.id[part], rows.last_seen[part])
            values_ND = np.ascontiguousarray(rows.value[part], np.float32)
            states_NS = np.ascontiguousarray(rows.state[part], np.float32)
            counts_N = np.ascontiguousarray(rows.count[part], np.int64)
            self._write(RowBlock(features_N, ids_N, values_ND, states_NS, counts_N, last_seen_N), flags)

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Delete the rows of these keys from every tier."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        if len(ids_N):
            # else a row that still waits to be spilled would be written after its tombstone
            self.lower_tiers.retry_spill()
            self.lower_tiers.spill.add_tombstones(features_N, ids_N)
            slots_N = self.memory.find(features_N, ids_N)
            self.memory.erase(self.memory.ops.xp.unique(slots_N[slots_N != NO_SLOT]))
            self.memory.changes.count_write()

    def resize(self, num_slots: int, num_overflow: int) -> None:
        """Change the number of slots; dirty rows stay dirty."""
        dirty = self.dirty_rows.keys()
        self.memory.resize(num_slots, num_overflow)
        self.dirty_rows.renumber(*dirty)

    def export(self) -> RowBlock:
        """Every row in memory and in the spill that has not expired, each key once."""
        slots_N = self.memory.occupied()
        resident, _ = self.memory.read(slots_N, *self.memory.ops.keys_of(self.memory.store, slots_N))
        self.lower_tiers.retry_spill()
        spilled = self.lower_tiers.spill.read_all()
        (slots_M,) = self.memory.ops.fetch(self.memory.find(spilled.feature, spilled.id))
        rows = RowBlock.concatenate([resident, spilled.take(slots_M == NO_SLOT)])
        return rows.take(self.cutoffs.alive(rows.feature, rows.last_seen)) if self.cutoffs else rows

    def _write(self, rows: RowBlock, flags: int) -> None:
        ops = self.memory.ops
        self.lower_tiers.retry_spill()
        self.lower_tiers.replace_rows(rows)
        tick = self.memory.pin()
        try:
            features_U, ids_U = ops.put(rows.feature, rows.id)
            slots_N = self.memory.find_or_insert(features_U, ids_U, ops.mix_keys(features_U, ids_U)).slots_U
            self.memory.write(slots_N, rows, np.full(len(rows), flags, np.int64))
            self.priorities.set_counts(self.memory.store, slots_N, rows.count)
            self.priorities.refresh(self.memory.store, slots_N)
            if flags & DIRTY:
                self.dirty_rows.add(slots_N)
        finally:
            self.memory.release(tick)


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
