"""Everything a table holds, whatever its tier: written, forgotten, moved to other slots, read out as a whole."""

# N rows
import numpy as np

from embeddings.memory.dirty_rows import DirtyRows
from embeddings.memory.resident import ResidentRows
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import Int64Array, Rows, TableDelta, UInt16Array, as_keys
from embeddings.tiers.lower_tiers import LowerTiers
from kernels.types import DIRTY, NO_SLOT

WRITTEN_ROWS = 65536  # rows that come from elsewhere are taken in steps of so many


class BulkOperations:
    """Rows that do not come from learning."""

    def __init__(
        self, memory: ResidentRows, below: LowerTiers, changes: DirtyRows, horizons: ExpiryCutoffs, *, by_count: bool
    ) -> None:
        self.memory, self.lower_tiers, self.dirty_rows, self.cutoffs = memory, below, changes, horizons
        self.by_count = by_count  # a row's count is its priority

    def write(self, rows: TableDelta, flags: int) -> None:
        """These rows replace what is here. SpillError between steps."""
        # a step's rows are all held at once: few enough that most find a slot
        step = min(WRITTEN_ROWS, max(self.memory.ops.width, self.memory.store.num_slots // 2))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            features_N, ids_N, last_seen_N = as_keys(rows.features[part], rows.ids[part], rows.last_seen[part])
            values_ND = np.ascontiguousarray(rows.values[part], np.float32)
            states_NS = np.ascontiguousarray(rows.states[part], np.float32)
            counts_N = np.ascontiguousarray(rows.counts[part], np.int64)
            self.lower_tiers.eviction_sink.retry_spill()
            tick = self.memory.pin()
            try:
                ops = self.memory.ops
                features_U, ids_U = ops.put(features_N, ids_N)
                slots_N = self.memory.find_or_insert(features_U, ids_U, ops.mix_keys(features_U, ids_U)).slots_U
                written = Rows(features_N, ids_N, values_ND, states_NS, counts_N, last_seen_N)
                self.memory.write(slots_N, written, np.full(len(written), flags, np.int64))
                if self.by_count:
                    ops.set_priorities(self.memory.store, slots_N, counts_N)
                if flags & DIRTY:
                    self.dirty_rows.add(slots_N)
            finally:
                self.memory.release(tick)

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """These keys have no row any more, in any tier."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        if len(ids_N):
            self.lower_tiers.eviction_sink.retry_spill()  # else a row that still waits there would come after its mark
            self.lower_tiers.spill.add_tombstones(features_N, ids_N)
            slots_N = self.memory.find(features_N, ids_N)
            self.memory.erase(self.memory.ops.xp.unique(slots_N[slots_N != NO_SLOT]))
            self.memory.writes += 1

    def resize(self, num_slots: int, num_overflow: int) -> None:
        """As many slots from now on, the touched rows known by their new ones."""
        touched = self.dirty_rows.keys()
        self.memory.resize(num_slots, num_overflow)
        self.dirty_rows.renumber(*touched)

    def export(self) -> Rows:
        """Every row in memory and in the spill that is alive, each key once."""
        slots_N = self.memory.occupied()
        resident, _ = self.memory.read(slots_N, *self.memory.ops.keys_of(self.memory.store, slots_N))
        self.lower_tiers.eviction_sink.retry_spill()
        spilled = self.lower_tiers.spill.read_all()
        (slots_M,) = self.memory.ops.fetch(self.memory.find(spilled.features, spilled.ids))
        rows = Rows.concatenate([resident, spilled.take(slots_M == NO_SLOT)])
        return rows.take(self.cutoffs.alive(rows.features, rows.last_seen)) if self.cutoffs else rows
