"""How the keys of a batch come to have rows in memory: admitted or not, found, recalled or created."""

# K keys of a batch, U unique keys, N some of them
from dataclasses import dataclass

import numpy as np
from springtide_client.keys import UInt64Array

from embeddings.config import TableConfig
from embeddings.counters import TableCounters
from embeddings.lookup.prefetch import PrefetchedRows
from embeddings.memory.eviction import EvictionSink
from embeddings.memory.placement import Placement, PredictedMisses
from embeddings.memory.resident import ResidentRows
from embeddings.policy.admission import AdmissionControl, NotAdmitted, share_rows
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import BoolArray, Int64Array, UInt16Array
from embeddings.tiers.lower_tiers import LowerTiers, RecalledRows
from embeddings.tiers.upload import recalled_flags
from kernels.ops import Ops
from kernels.types import NO_SLOT, Array, RowColumns, UniqueKeys, priority_of


@dataclass(frozen=True, kw_only=True)
class Materializer:
    """Gives every unique key of a batch a row in memory. Leaves memory as it was where a tier below fails.

    Arrays of U and K are the device's; what the tiers below and admission are asked is the host's.
    """

    ops: Ops
    memory: ResidentRows
    lower_tiers: LowerTiers
    eviction_sink: EvictionSink
    admission: AdmissionControl
    cutoffs: ExpiryCutoffs
    counters: TableCounters
    config: TableConfig
    seed: int

    def ensure_resident(
        self,
        unique: UniqueKeys,
        staged: PrefetchedRows | None,
        foreseen: PredictedMisses | None,
        scores_K: Array | None,
    ) -> tuple[UniqueKeys, Array]:
        """The batch, refused keys replaced by shared ones, and its slots. The memory holds a tick."""
        counted = admitted_N = None
        if self.admission:
            unique, staged, counted, admitted_N = self._admit(unique, staged)
            foreseen = None  # the keys are others
        settled = self.memory.find_or_insert(unique.features_U, unique.ids_U, unique.mixed_U, foreseen)
        slots_U = settled.slots_U
        if len(settled.new_N) or self.cutoffs:
            try:
                self._fill(unique, settled, staged)
            except BaseException:
                self.memory.erase(slots_U[settled.new_N])  # they hold no row
                raise
        self.counters["hits_device"] += len(slots_U) - len(settled.new_N)
        if counted is not None and admitted_N is not None:
            self.admission.count(*counted)
            num_admitted = int(np.count_nonzero(admitted_N))
            self.counters["admitted"] += num_admitted
            self.counters["not_admitted"] += len(admitted_N) - num_admitted
        if scores_K is not None:
            order_K, offsets_U1 = self.ops.group(unique.inverse_K, unique.occurrences_U)
            (scores_K,) = self.ops.put(scores_K)
            scores_U = scores_K[order_K[offsets_U1[1:] - 1]]  # the last one counts
            self.ops.set_priorities(self.memory.store, slots_U, priority_of(scores_U, self.ops.xp))
        return unique, slots_U

    def _admit(
        self, unique: UniqueKeys, staged: PrefetchedRows | None
    ) -> tuple[UniqueKeys, PrefetchedRows, tuple[UInt16Array, UInt64Array, Int64Array], BoolArray]:
        """1. Which keys have no row anywhere. 2. Those seen too seldom share one."""
        features_U, ids_U, mixed_U = unique.features_U, unique.ids_U, unique.mixed_U
        slots_U = self.ops.find(self.memory.store, features_U, ids_U, mixed_U)
        there = self.ops.xp.flatnonzero(slots_U == NO_SLOT)
        missing, dead, features_M, ids_M = self.ops.fetch(
            there, self.memory.expired_positions(slots_U, features_U, self.cutoffs), features_U[there], ids_U[there]
        )
        recalled = self._recall(missing, features_M, ids_M, staged)
        staged = PrefetchedRows.of(missing, recalled, len(ids_U))
        rowless = np.sort(np.concatenate([missing[~recalled.without_expired(self.cutoffs).found_U], dead[dead >= 0]]))
        (at,) = self.ops.put(rowless)
        features_N, mixed_N, occurrences_N, last_seen_N = self.ops.fetch(
            features_U[at], mixed_U[at], unique.occurrences_U[at], unique.last_seen_U[at]
        )
        admitted_N = self.admission.admits(features_N, mixed_N, occurrences_N)
        if not admitted_N.all():
            refused = NotAdmitted(
                *(column[~admitted_N] for column in (rowless, features_N, occurrences_N, last_seen_N))
            )
            unique, kept_U = share_rows(self.ops, unique, refused)
            staged = staged.keep(kept_U, len(unique.ids_U))
        return unique, staged, (features_N, mixed_N, occurrences_N), admitted_N

    def _fill(self, unique: UniqueKeys, settled: Placement, staged: PrefetchedRows | None) -> None:
        """Rows from below where there are any, else first values; a row that is dead by rule begins anew."""
        slots_U, new_N = settled.slots_U, settled.new_N
        dead = self._expired(unique, slots_U, new_N)
        recalled = self._recall(settled.positions_N, settled.features_N, settled.ids_N, staged).without_expired(
            self.cutoffs
        )
        found_N, first = recalled.found_U, new_N
        if found_N.any():
            slots_F, columns = self._upload_found(recalled, slots_U[new_N])
            self.ops.scatter(self.memory.store, slots_F, columns)
            if self.config.eviction == "lfu":
                self.ops.set_priorities(self.memory.store, slots_F, columns.counts_N)
            (others,) = self.ops.put(np.flatnonzero(~found_N))
            first = new_N[others]
        if len(first):
            self._create(unique, slots_U[first], first)
        self._count(recalled, len(first))
        if len(dead):
            self._recreate_expired(unique, slots_U, dead)
        self.eviction_sink.count_premature(unique.mixed_U[new_N], self.memory.pins.clock)

    def _create(self, unique: UniqueKeys, slots_N: Array, positions_N: Array) -> None:
        keys_N = unique.features_U[positions_N], unique.ids_U[positions_N]
        self.ops.create(self.memory.store, slots_N, *keys_N, self.seed, self.config.init_scale)

    def _recreate_expired(self, unique: UniqueKeys, slots_U: Array, dead: Array) -> None:
        """Rows in memory that are dead take first values. How many they are the device may tell later."""
        xp, num = self.ops.xp, self.ops.num_listed(dead)
        slots_N = xp.where(dead == NO_SLOT, NO_SLOT, slots_U[dead])
        self._create(unique, slots_N, dead)
        self.ops.set_priorities(self.memory.store, slots_N, xp.zeros(len(dead), np.int64))
        for name, number in (("created", num), ("expired", num), ("hits_device", -num)):
            self.counters.add(name, number)

    def _upload_found(self, recalled: RecalledRows, slots_N: Array) -> tuple[Array, RowColumns]:
        """The rows that were found, on the device, and their slots; not those that expired meanwhile."""
        found_N, rows = recalled.found_U, recalled.rows
        if recalled.upload is None:
            found = np.flatnonzero(found_N)
            rows = rows if len(found) == len(rows) else rows.take(found)
            known = rows.counts, rows.last_seen, recalled_flags(recalled.from_spill_U[found])
            positions, *put = self.ops.put(found, rows.values, rows.states, *known)
            return slots_N[positions], RowColumns(*put)
        positions, columns = recalled.upload.finish()
        live_F = found_N[recalled.upload.positions_F]
        if not live_F.all():
            (live,) = self.ops.put(np.flatnonzero(live_F))
            positions, columns = positions[live], RowColumns(*(column[live] for column in columns))
        return slots_N[positions], columns

    def _expired(self, unique: UniqueKeys, slots_U: Array, new_N: Array) -> Array:
        if not self.cutoffs:
            return new_N[:0]
        old_U = slots_U.copy()
        old_U[new_N] = NO_SLOT  # they hold no row yet
        return self.memory.expired_positions(old_U, unique.features_U, self.cutoffs)

    def _recall(
        self, positions_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array, staged: PrefetchedRows | None
    ) -> RecalledRows:
        """What the tiers below know of the keys at these positions: what was staged, and the rest now."""
        if staged is None:
            return self.lower_tiers.recall(features_N, ids_N)
        place_N = staged.place_U[positions_N]
        late = np.flatnonzero(place_N < 0)
        if len(late) == 0:
            return staged.recalled.take(place_N)
        rest = self.lower_tiers.recall(features_N[late], ids_N[late])
        place_N[late] = len(staged.recalled.found_U) + np.arange(len(late))
        return RecalledRows.concatenate([staged.recalled, rest]).take(place_N)

    def _count(self, recalled: RecalledRows, num_first: int) -> None:
        num_spill = int(np.count_nonzero(recalled.from_spill_U))
        self.counters["recalled_from_spill"] += num_spill
        self.counters["recalled_from_base"] += int(np.count_nonzero(recalled.found_U)) - num_spill
        self.counters["created"] += num_first
