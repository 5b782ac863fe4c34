"""Fate of evicted rows: dropped, spilled, kept for the next version; and retried when the spill fails."""

# N rows
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

import numpy as np

from springtide.embeddings.counters import TableCounters
from springtide.embeddings.errors import SpillError
from springtide.embeddings.policy.removals import RemovalReason, Removals
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import BoolArray, Int64Array, TableDelta, UInt16Array
from springtide.embeddings.tiers.interface import Spill
from springtide.kernels.ops import Ops
from springtide.kernels.types import DIRTY, NEEDS_SPILL, SPILLED, Array
from springtide_client.rows.row_block import RowBlock, key_order

NO_LIMIT = 1 << 62


class EvictedDirtyRows:
    """A buffer that keeps the newest copy of a key: a tombstone replaces its row, a row replaces its tombstone."""

    def __init__(self, capacity: int, dim: int, state_width: int) -> None:
        self.capacity = capacity
        self.dim, self.state_width = dim, state_width
        self.clear()

    def __len__(self) -> int:
        return self._num_rows

    def clear(self) -> None:
        self._parts: list[RowBlock] = []  # oldest first: rows, or tombstones
        self._num_rows = 0

    @property
    def num_free(self) -> int:
        """How many more rows fit; into an empty buffer any number fits."""
        return self.capacity - self._num_rows if self._num_rows else NO_LIMIT

    def add(self, rows: RowBlock) -> None:
        if len(rows):
            self._parts.append(rows)
            self._num_rows += len(rows)

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            self._parts.append(RowBlock.of_keys(features_N, ids_N, self.dim, self.state_width).deleted())
            self._num_rows += len(ids_N)

    def num_bytes(self) -> int:
        return sum(rows.num_bytes for rows in self._parts)

    def drain(self, resident: RowBlock, is_resident: Callable[[UInt16Array, Int64Array], BoolArray]) -> TableDelta:
        """The resident dirty rows, and the newest copy here of every key that is not among them. Empties the buffer."""
        if not self._parts:
            return TableDelta(resident)
        rows = RowBlock.concatenate(self._parts[::-1])
        self.clear()
        rows = rows.take(np.sort(key_order(rows.key_hash, rows.feature, once=True)))  # of equal keys the newest
        rows = rows.take(~is_resident(rows.feature, rows.id))
        forgotten_N = rows.tombstones()
        dirty = RowBlock.concatenate([resident, rows.take(~forgotten_N).without_tombstones()])
        return TableDelta(dirty, rows.take(forgotten_N))


PREMATURE_LOOKUPS = 1000  # an eviction was premature if the row is looked up again within this many lookups
MIN_GHOSTS, MAX_GHOSTS = 64, 1 << 22


class EvictionReason(StrEnum):
    """Why a row was evicted."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    RESIZE = "resize"


class EvictionSink:
    """Takes every evicted row. Without a spill an evicted row is lost, and the next version forgets its key."""

    def __init__(
        self,
        ops: Ops,
        spill: Spill,
        evicted_dirty: EvictedDirtyRows,
        cutoffs: ExpiryCutoffs,
        counters: TableCounters,
        num_slots: int,
        removals: Removals,
        *,
        tracked: bool,
    ) -> None:
        self.ops, self.spill, self.counters, self.removals = ops, spill, counters, removals
        self.evicted_dirty, self.cutoffs, self.tracked = evicted_dirty, cutoffs, tracked
        self._num_ghosts = num_ghosts(num_slots)
        self.ghosts = ops.new_ghosts(self._num_ghosts)  # keys that were evicted recently
        self._inflight: deque[Callable[[], None]] = deque()
        self._unspilled: list[tuple[RowBlock, int]] = []  # rows the spill has not taken, and how many are new to it

    @property
    def has_inflight(self) -> bool:
        """True while evicted rows are on their way from the device to the host."""
        return bool(self._inflight)

    def add_inflight(self, receive: Callable[[], None]) -> None:
        """Note that evicted rows are on their way from the device. `receive` waits for them and calls `evict`."""
        self._inflight.append(receive)

    def drain_inflight(self) -> None:
        """Receive the rows in flight. Called before reading the lower tiers or the counters."""
        while self._inflight:
            self._inflight.popleft()()

    def evict(self, rows: RowBlock, flags_N: Int64Array, reason: EvictionReason, tick: int) -> None:
        """1. Note the keys. 2. Drop expired rows. 3. Keep dirty ones for the next version. 4. Spill changed ones."""
        self.ops.ghosts_add(self.ghosts, self.ops.hash_keys(rows.feature, rows.id), tick)
        self.counters["evicted"] += len(rows)
        self.counters[f"evicted_{reason}"] += len(rows)
        if self.cutoffs:
            kept_N = self.cutoffs.alive(rows.feature, rows.last_seen)
            if self.tracked:
                kept_N |= (flags_N & DIRTY) != 0
            if not kept_N.all():
                self.counters["expired"] += int(np.count_nonzero(~kept_N))
                self.remove_expired(rows.take(~kept_N), flags_N[~kept_N])
                rows, flags_N = rows.take(kept_N), flags_N[kept_N]
        changed_N, dirty_N = (flags_N & NEEDS_SPILL) != 0, (flags_N & DIRTY) != 0
        changed = rows.where(changed_N)
        self.counters["dropped"] += len(rows) - len(changed)
        self.counters["spilled" if self.spill.keeps_rows else "lost"] += len(changed)
        if not self.spill.keeps_rows:
            why = RemovalReason.QUOTA if reason == EvictionReason.QUOTA else RemovalReason.CAPACITY
            self.removals.add(why, changed.feature, changed.id)
        if self.tracked and self.spill.keeps_rows:
            self.evicted_dirty.add(rows.where(dirty_N))
        elif self.tracked:
            self.evicted_dirty.add_tombstones(changed.feature, changed.id)
        if len(changed):
            self._unspilled.append((changed, int(np.count_nonzero(changed_N & ((flags_N & SPILLED) == 0)))))
            with suppress(SpillError):  # raised again by the next lookup, which needs the room
                self.retry_spill()

    def has_room(self, num_rows: int, wait_seconds: float) -> bool:
        """Return True once the spill has taken all rows evicted so far, and has room for so many more."""
        self.drain_inflight()
        num_unspilled = sum(len(rows) for rows, _ in self._unspilled)
        if not self.spill.has_room(num_unspilled + num_rows, wait_seconds):
            return False
        with suppress(SpillError):
            self.retry_spill()
        return not self._unspilled

    def retry_spill(self) -> None:
        """Write the rows that the spill has not taken yet. SpillError while it still fails; the rows are kept."""
        self.drain_inflight()
        while self._unspilled:
            rows, num_new = self._unspilled[0]
            self.spill.write(rows, num_new)
            self._unspilled.pop(0)

    def remove_expired(self, rows: RowBlock, flags_N: Int64Array) -> None:
        """Report expired rows, once: a tombstone keeps copies of them in the spill from being reported later."""
        if not self.removals.wanted:
            return
        self.removals.add(RemovalReason.EXPIRED, rows.feature, rows.id)
        spilled_N = (flags_N & SPILLED) != 0
        if spilled_N.any():
            with suppress(SpillError):  # then a key may be reported twice
                self.spill.add_tombstones(rows.feature[spilled_N], rows.id[spilled_N])

    def count_expired(self, features_N: Array, ids_N: Array, tick: int) -> None:
        """Count rows deleted from memory because they had expired."""
        self.ops.ghosts_add(self.ghosts, self.ops.hash_keys(features_N, ids_N), tick)
        self.counters["expired"] += len(ids_N)

    def count_premature(self, key_hash_N: Array, tick: int) -> None:
        """Count those of these missing keys that were evicted a short while ago."""
        if len(key_hash_N):
            since = max(0, tick - PREMATURE_LOOKUPS)
            self.counters.add("premature_evictions", self.ops.ghosts_count(self.ghosts, key_hash_N, since))

    def resize(self, num_slots: int) -> None:
        """Adapt the list of recently evicted keys to a table of this size; if its length changes it starts empty."""
        if num_ghosts(num_slots) != self._num_ghosts:
            self._num_ghosts = num_ghosts(num_slots)
            self.ghosts = self.ops.new_ghosts(self._num_ghosts)

    def num_bytes(self) -> int:
        """Bytes of the list of recently evicted keys."""
        return 8 * self._num_ghosts


def num_ghosts(num_slots: int) -> int:
    """How many evicted keys to remember: a quarter of the slots, 8 bytes each."""
    return min(MAX_GHOSTS, max(MIN_GHOSTS, num_slots // 4))
