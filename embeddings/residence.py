"""How the keys of a batch come to have rows in memory: admitted or not, found, recalled or created."""

# K keys of a batch, U unique keys, N some of them
from collections import Counter
from dataclasses import dataclass

import numpy as np
from springtide_client.keys import UInt64Array

from embeddings.admission import AdmissionControl, share_rows
from embeddings.below import Below, Recalled
from embeddings.config import TableConfig
from embeddings.departures import Departures
from embeddings.horizons import Horizons
from embeddings.memory import Memory
from embeddings.prefetch import Staged
from embeddings.rows import BoolArray, Float32Array, Int64Array, UInt16Array
from kernels.spec import NO_SLOT, STORED, Unique, Verbs, priority_of


@dataclass(frozen=True, kw_only=True)
class Residence:
    """Gives every unique key of a batch a row in memory. Leaves memory as it was where a tier below fails."""

    verbs: Verbs
    memory: Memory
    below: Below
    departures: Departures
    admission: AdmissionControl
    horizons: Horizons
    counters: Counter[str]
    config: TableConfig
    seed: int

    def settle(self, unique: Unique, staged: Staged | None, scores_K: Float32Array | None) -> tuple[Unique, Int64Array]:
        """The batch, refused keys replaced by shared ones, and its slots. The memory holds a tick."""
        counted = admitted_N = None
        if self.admission:
            unique, staged, counted, admitted_N = self._admit(unique, staged)
        slots_U, new_N = self.memory.place(unique.features_U, unique.ids_U, unique.mixed_U)
        if len(new_N) or self.horizons:
            try:
                self._fill(unique, slots_U, new_N, staged)
            except BaseException:
                self.memory.erase(slots_U[new_N])  # they hold no row
                raise
        self.counters["hits_device"] += len(slots_U) - len(new_N)
        if counted is not None and admitted_N is not None:
            self.admission.count(*counted)
            num_admitted = int(np.count_nonzero(admitted_N))
            self.counters["admitted"] += num_admitted
            self.counters["not_admitted"] += len(admitted_N) - num_admitted
        if scores_K is not None:
            scores_U = np.zeros(len(slots_U), np.float32)
            scores_U[unique.inverse_K] = scores_K  # the last one counts
            self.verbs.set_priorities(self.memory.store, slots_U, priority_of(scores_U))
        return unique, slots_U

    def _admit(
        self, unique: Unique, staged: Staged | None
    ) -> tuple[Unique, Staged, tuple[UInt16Array, UInt64Array, Int64Array], BoolArray]:
        """1. Which keys have no row anywhere. 2. Those seen too seldom share one."""
        features_U, ids_U, mixed_U = unique.features_U, unique.ids_U, unique.mixed_U
        slots_U = self.verbs.find(self.memory.store, features_U, ids_U, mixed_U)
        dead = self.memory.dead(slots_U, features_U, self.horizons)
        missing = np.flatnonzero(slots_U == NO_SLOT)
        recalled = self._recall(unique, missing, staged)
        staged = Staged.of(missing, recalled, len(ids_U))
        rowless = np.sort(np.concatenate([missing[~recalled.alive(self.horizons).found_U], dead]))
        features_N, mixed_N, occurrences_N = features_U[rowless], mixed_U[rowless], unique.occurrences_U[rowless]
        admitted_N = self.admission.admits(features_N, mixed_N, occurrences_N)
        refused = rowless[~admitted_N]
        if len(refused):
            unique, kept_U = share_rows(self.verbs, unique, refused)
            staged = staged.kept(kept_U, len(unique.ids_U))
        return unique, staged, (features_N, mixed_N, occurrences_N), admitted_N

    def _fill(self, unique: Unique, slots_U: Int64Array, new_N: Int64Array, staged: Staged | None) -> None:
        """Rows from below where there are any, else first values; a row that is dead by rule begins anew."""
        dead = self._dead(unique, slots_U, new_N)
        recalled = self._recall(unique, new_N, staged).alive(self.horizons)
        found_N = recalled.found_U
        if found_N.any():
            rows = recalled.rows if found_N.all() else recalled.rows.take(found_N)
            slots_N = slots_U[new_N[found_N]]
            # not CHANGED: it is what lies below
            self.memory.write(slots_N, rows, np.where(recalled.from_spill_U[found_N], STORED, 0))
            if self.config.eviction == "lfu":
                self.verbs.set_priorities(self.memory.store, slots_N, rows.counts)
        first = np.concatenate([new_N[~found_N], dead])
        if len(first):
            slots_N, features_N, ids_N = slots_U[first], unique.features_U[first], unique.ids_U[first]
            self.verbs.create(self.memory.store, slots_N, features_N, ids_N, self.seed, self.config.init_scale)
            if len(dead):
                self.verbs.set_priorities(self.memory.store, slots_U[dead], np.zeros(len(dead), np.int64))
        self._count(recalled, len(first), len(dead))
        self.departures.returned(unique.mixed_U[new_N], self.memory.clock)

    def _dead(self, unique: Unique, slots_U: Int64Array, new_N: Int64Array) -> Int64Array:
        if not self.horizons:
            return new_N[:0]
        old_U = slots_U.copy()
        old_U[new_N] = NO_SLOT  # they hold no row yet
        return self.memory.dead(old_U, unique.features_U, self.horizons)

    def _recall(self, unique: Unique, wanted: Int64Array, staged: Staged | None) -> Recalled:
        """What the tiers below know of the keys at these positions: what was staged, and the rest now."""
        if staged is None:
            return self.below.recall(unique.features_U[wanted], unique.ids_U[wanted])
        place_N = staged.place_U[wanted]
        late = np.flatnonzero(place_N < 0)
        if len(late) == 0:
            return staged.recalled.take(place_N)
        rest = self.below.recall(unique.features_U[wanted[late]], unique.ids_U[wanted[late]])
        place_N[late] = len(staged.recalled.found_U) + np.arange(len(late))
        return Recalled.concatenate([staged.recalled, rest]).take(place_N)

    def _count(self, recalled: Recalled, num_first: int, num_dead: int) -> None:
        num_spill = int(np.count_nonzero(recalled.from_spill_U))
        self.counters["recalled_from_spill"] += num_spill
        self.counters["recalled_from_base"] += int(np.count_nonzero(recalled.found_U)) - num_spill
        self.counters["created"] += num_first
        self.counters["expired"] += num_dead
        self.counters["hits_device"] -= num_dead
