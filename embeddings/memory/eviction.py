"""What becomes of rows that leave memory: dropped, spilled, kept for the next cut. And of those the spill refused."""

# N rows
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

import numpy as np

from embeddings.counters import TableCounters
from embeddings.errors import SpillError
from embeddings.memory.evicted_dirty_rows import EvictedDirtyRows
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import BoolArray, Int64Array, Rows
from embeddings.tiers.interface import Spill
from kernels.ops import Ops
from kernels.types import DIRTY, NEEDS_SPILL, SPILLED, Array

REGRET_LOOKUPS = 1000  # a row asked for again within so many look-ups was missed
MIN_GHOSTS, MAX_GHOSTS = 64, 1 << 22


class EvictionReason(StrEnum):
    """Why a row left memory."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    RESIZE = "resize"


class EvictionSink:
    """Sees rows off. Without a spill a row that leaves is forgotten, and the next cut says so."""

    def __init__(
        self,
        ops: Ops,
        spill: Spill,
        side: EvictedDirtyRows,
        horizons: ExpiryCutoffs,
        counters: TableCounters,
        num_slots: int,
        *,
        tracked: bool,
    ) -> None:
        self.ops, self.spill, self.evicted_dirty, self.cutoffs, self.counters = ops, spill, side, horizons, counters
        self._num_ghosts, self.tracked = num_ghosts(num_slots), tracked
        self.ghosts = ops.new_ghosts(self._num_ghosts)
        self._inflight: deque[Callable[[], None]] = deque()
        self._unspilled: list[tuple[Rows, int]] = []

    @property
    def has_inflight(self) -> bool:
        """Whether rows that left are still on their way from the device."""
        return bool(self._inflight)

    def add_inflight(self, arrive: Callable[[], None]) -> None:
        """Rows have left the device and are on their way; `arrive` waits for them and calls `leave`."""
        self._inflight.append(arrive)

    def drain_inflight(self) -> None:
        """Takes in what was expected: before anybody looks at what lies below memory, or counts."""
        while self._inflight:
            self._inflight.popleft()()

    def evict(self, rows: Rows, flags_N: Int64Array, reason: EvictionReason, tick: int) -> None:
        """1. Remember who left. 2. Drop the dead. 3. Keep the touched for the cut. 4. Spill the changed."""
        self.ops.ghosts_add(self.ghosts, self.ops.mix_keys(rows.features, rows.ids), tick)
        self.counters["evicted"] += len(rows)
        self.counters[f"evicted_{reason}"] += len(rows)
        if self.cutoffs:
            alive_N = self.cutoffs.alive(rows.features, rows.last_seen) | ((flags_N & DIRTY) != 0)
            if not alive_N.all():
                self.counters["expired"] += int(np.count_nonzero(~alive_N))
                rows, flags_N = rows.take(alive_N), flags_N[alive_N]
        changed_N, touched_N = (flags_N & NEEDS_SPILL) != 0, (flags_N & DIRTY) != 0
        changed = _where(rows, changed_N)
        self.counters["dropped"] += len(rows) - len(changed)
        self.counters["spilled" if self.spill.keeps_rows else "lost"] += len(changed)
        if self.tracked and self.spill.keeps_rows:
            self.evicted_dirty.add(_where(rows, touched_N))
        elif self.tracked:
            self.evicted_dirty.add_tombstones(changed.features, changed.ids)
        if len(changed):
            self._unspilled.append((changed, int(np.count_nonzero(changed_N & ((flags_N & SPILLED) == 0)))))
            with suppress(SpillError):  # whoever asks for more room is told
                self.retry_spill()

    def resize(self, num_slots: int) -> None:
        """As many marks as suit a table of this size; who left before is forgotten where that is another number."""
        if num_ghosts(num_slots) != self._num_ghosts:
            self._num_ghosts = num_ghosts(num_slots)
            self.ghosts = self.ops.new_ghosts(self._num_ghosts)

    def num_bytes(self) -> int:
        """Of the marks of who left."""
        return 8 * self._num_ghosts

    def retry_spill(self) -> None:
        """Hands the spill what it could not take before; SpillError while it still cannot. The rows wait here."""
        self.drain_inflight()
        while self._unspilled:
            rows, num_new = self._unspilled[0]
            self.spill.write(rows, num_new)
            self._unspilled.pop(0)

    def count_expired(self, features_N: Array, ids_N: Array, tick: int) -> None:
        """Rows that were swept away because they were dead."""
        self.ops.ghosts_add(self.ghosts, self.ops.mix_keys(features_N, ids_N), tick)
        self.counters["expired"] += len(ids_N)

    def count_premature(self, mixed_N: Array, tick: int) -> None:
        """Keys that were asked for and not in memory: some had left only just."""
        if len(mixed_N):
            since = max(0, tick - REGRET_LOOKUPS)
            self.counters.add("regret", self.ops.ghosts_count(self.ghosts, mixed_N, since))

    @property
    def num_stranded(self) -> int:
        return sum(len(rows) for rows, _ in self._unspilled)


def num_ghosts(num_slots: int) -> int:
    """A quarter of the slots: what left in the last moments, 8 bytes each."""
    return min(MAX_GHOSTS, max(MIN_GHOSTS, num_slots // 4))


def _where(rows: Rows, chosen_N: BoolArray) -> Rows:
    return rows if chosen_N.all() else rows.take(chosen_N)
