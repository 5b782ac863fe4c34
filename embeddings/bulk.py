"""Rows of a table that do not come from training: taken for a version, restored, written, forgotten, exported."""

# N rows
import numpy as np

from springtide.embeddings.components import TableComponents
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.rows import Int64Array, TableDelta, UInt16Array, as_keys
from springtide.embeddings.tiers.interface import RowSource
from springtide.kernels.types import DIRTY, NEEDS_SPILL, NO_SLOT, SPILLED, RowColumns
from springtide_client.rows.row_block import RowBlock, key_order

WRITTEN_ROWS_PER_STEP = 65536


class BulkOperations(TableComponents):
    """Takes, writes, forgets and exports rows, wherever they are. Moves resident rows to another number of slots."""

    @on_current_stream
    def take_delta(self) -> TableDelta:
        """All dirty rows, and the keys forgotten, since the last call."""
        self.counts["checkpoints"] += 1
        return self.dirty_rows.take_delta(self.pool.parallel_for)

    @on_current_stream
    def restore(self, delta: TableDelta) -> None:
        """Apply a version's delta. Its rows are spilled if they are evicted, but are not part of the next delta."""
        features_N, ids_N, _ = as_keys(delta.forgotten.feature, delta.forgotten.id, delta.forgotten.id)
        self._forget(features_N, ids_N)
        self._write(delta.rows, NEEDS_SPILL)

    @on_current_stream
    def write(self, rows: RowBlock) -> None:
        """Write rows over what the table has of their keys; they are dirty. ValueError if a number is not finite.

        SpillError between steps.
        """
        if not (np.isfinite(rows.value).all() and np.isfinite(rows.state).all()):
            raise ValueError("rows to be written contain numbers that are not finite: leave those rows out")
        flags = NEEDS_SPILL | DIRTY if self.tracked else NEEDS_SPILL
        # for removals: the spill may have an older copy
        self._write(rows, flags | SPILLED if self.removals.wanted else flags)

    @on_current_stream
    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Delete the rows of these keys from every tier. The next delta forgets them too."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        self._forget(features_N, ids_N)
        if self.tracked:
            self.evicted_dirty.add_tombstones(features_N, ids_N)
        self.counts["forgotten"] += len(ids_N)

    @on_current_stream
    def export(self) -> RowBlock:
        """Every row in memory and in the spill that has not expired, each key once; not the rows of the base."""
        slots_N = self.memory.occupied()
        resident, _ = self.memory.read(slots_N, *self.ops.keys_of(self.memory.store, slots_N))
        self.lower_tiers.retry_spill()
        spilled = self.lower_tiers.spill.read_all()
        (slots_M,) = self.ops.fetch(self.memory.find(spilled.feature, spilled.id))
        rows = RowBlock.concatenate([resident, spilled.take(slots_M == NO_SLOT)])
        return rows.take(self.cutoffs.alive(rows.feature, rows.last_seen)) if self.cutoffs else rows

    @on_current_stream
    def keys(self) -> tuple[UInt16Array, Int64Array]:
        """Return features and ids of the rows of all tiers, each once; of the base also those that are gone since.

        The rows of the spill must fit into memory.
        """
        rows = self.export()
        features, ids = [rows.feature], [rows.id]
        if self.lower_tiers.base is not None:
            in_base = self.lower_tiers.base.keys()
            features.append(in_base[0])
            ids.append(in_base[1])
        keys = RowBlock.of_keys(np.concatenate(features), np.concatenate(ids))
        once = key_order(keys.key_hash, keys.feature, once=True)
        return keys.feature[once], keys.id[once]

    def resize(self, num_slots: int, num_overflow: int) -> None:
        """Change the number of slots; dirty rows stay dirty."""
        dirty = self.dirty_rows.keys()
        self.memory.resize(num_slots, num_overflow)
        self.dirty_rows.renumber(*dirty)

    def open_generation(self) -> int:
        """Start a spill generation; call right after the `take_delta` that a base contains. Return its predecessor."""
        return self.spill.open_generation()

    def map_base(self, base: RowSource, generation: int) -> None:
        """Read from this base from now on. It contains the spill's generations up to this one, which are deleted."""
        self.lower_tiers.base = base
        # a fetch under way may read the old base, but no longer the generations above it
        self.memory.changes.count_write()
        self.spill.destroy_generations(generation)

    @on_current_stream
    def check_integrity(self) -> None:
        """AssertionError if index and rows contradict each other, or if a dirty slot is not listed. Reads every row."""
        ops, memory, store = self.ops, self.memory, self.memory.store
        listed_dirty = self.dirty_rows.slots() if self.tracked else None
        self.eviction_sink.drain_inflight()
        occupied_N = memory.occupied()
        keys = ops.keys_of(store, occupied_N)
        slots_N, found_N, features_N = ops.fetch(occupied_N, memory.find(*keys), keys[0])
        assert np.array_equal(found_N, slots_N), "a key is not found in its slot"
        assert len(slots_N) == memory.num_rows, f"{len(slots_N)} slots are occupied, {memory.num_rows} rows are counted"
        num_in_overflow = np.count_nonzero(slots_N >= store.num_slots)
        assert num_in_overflow <= memory.max_in_overflow, "too many rows in the overflow area"
        columns = RowColumns(*ops.fetch(*ops.read(store, occupied_N)))
        dirty = set(slots_N[(columns.flags_N & DIRTY) != 0].tolist())
        assert listed_dirty is None or dirty <= listed_dirty, f"dirty slots are not listed: {dirty - listed_dirty}"
        assert np.isfinite(columns.values_ND).all(), "a row is not finite"
        assert np.isfinite(columns.states_NS).all(), "an optimizer state is not finite"
        assert (columns.counts_N >= 0).all(), "a count is negative"
        if memory.quotas:
            counted_F = np.bincount(features_N, minlength=len(memory.quotas.rows_F))
            assert np.array_equal(counted_F, memory.quotas.rows_F), "the rows of a feature are miscounted"

    def _write(self, rows: RowBlock, flags: int) -> None:
        # the rows of a step are all pinned at once: few enough that most of them find a slot
        step = min(WRITTEN_ROWS_PER_STEP, max(self.ops.width, self.memory.store.num_slots // 2))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            features_N, ids_N, last_seen_N = as_keys(rows.feature[part], rows.id[part], rows.last_seen[part])
            values_ND = np.ascontiguousarray(rows.value[part], np.float32)
            states_NS = np.ascontiguousarray(rows.state[part], np.float32)
            counts_N = np.ascontiguousarray(rows.count[part], np.int64)
            self._write_step(RowBlock(features_N, ids_N, values_ND, states_NS, counts_N, last_seen_N), flags)

    def _forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            # else a row that still waits to be spilled would be written after its tombstone
            self.lower_tiers.retry_spill()
            self.lower_tiers.spill.add_tombstones(features_N, ids_N)
            slots_N = self.memory.find(features_N, ids_N)
            self.memory.erase(self.ops.xp.unique(slots_N[slots_N != NO_SLOT]))
            self.memory.changes.count_write()

    def _write_step(self, rows: RowBlock, flags: int) -> None:
        ops = self.ops
        self.lower_tiers.retry_spill()
        self.lower_tiers.replace_rows(rows)
        tick = self.memory.pin()
        try:
            features_U, ids_U = ops.put(rows.feature, rows.id)
            slots_N = self.memory.find_or_insert(features_U, ids_U, ops.hash_keys(features_U, ids_U)).slots_U
            self.memory.write(slots_N, rows, np.full(len(rows), flags, np.int64))
            self.priorities.set_counts(self.memory.store, slots_N, rows.count)
            self.priorities.refresh(self.memory.store, slots_N)
            if flags & DIRTY:
                self.dirty_rows.add(slots_N)
        finally:
            self.memory.release(tick)
