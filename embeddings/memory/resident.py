"""The resident tier: finds and inserts keys, and evicts rows when their slots are needed."""

# U unique keys, N some of them, V victims
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.memory.eviction import EvictionReason, EvictionSink
from springtide.embeddings.policy.quotas import Quotas
from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.kernels.ops import Ops
from springtide.kernels.types import NO_SLOT, Array, RowColumns, RowLayout, Spread, run_inline
from springtide_client.rows.row_block import RowBlock


class PinSet:
    """The ticks of open lookups: each stamps its rows, and the oldest protects its own rows and all stamped since.

    Used by one thread, except for `release_later`.
    """

    def __init__(self) -> None:
        self.clock = 0  # one tick a lookup
        self._pinned: set[int] = set()
        self._released: deque[int] = deque()  # still in _pinned until `apply_releases`

    def __len__(self) -> int:
        """Lookups that were not released when `apply_releases` was last called."""
        return len(self._pinned)

    def pin(self) -> int:
        """Start a new tick. Rows stamped with it stay in memory until it is released."""
        self.clock += 1
        self._pinned.add(self.clock)
        return self.clock

    def release_later(self, tick: int) -> None:
        """Queue a release for the next `apply_releases`. Safe in any thread at any time, also in a finalizer."""
        self._released.append(tick)

    def apply_releases(self) -> bool:
        """Apply the queued releases. Return True if there were any."""
        any_ = bool(self._released)
        while self._released:
            self._pinned.discard(self._released.popleft())
        return any_

    def protect_from(self, otherwise: int) -> int:
        """The oldest pinned tick: rows stamped with it or a later one must stay. `otherwise` if nothing is pinned."""
        return min(self._pinned, default=otherwise)

    def protect_now(self) -> int:
        """The oldest tick to protect from an eviction between batches: if nothing is pinned, any row may go."""
        return self.protect_from(self.clock + 1)


class ChangeCounters:
    """Counters to remember beside a fact about rows. The fact must be dropped as soon as one of them has moved.

    - Rows fetched from the lower tiers ahead of their lookup depend on `writes`.
    - The set of a batch's keys that are missing from memory depends on `writes` and `removals`.
    - The slots of an open lookup depend on `erasures`; it then finds its slots again.
    """

    def __init__(self) -> None:
        self.writes = 0  # keys were inserted or forgotten, or another base was mapped: a fetch may be outdated
        self.removals = 0  # rows left memory or changed slots, other than to make room for an insertion
        self.erasures = 0  # those removals after which an open lookup's slot may be empty or another key's

    def count_write(self) -> None:
        self.writes += 1

    def count_removal(self) -> None:
        """Rows of no open lookup left memory."""
        self.removals += 1

    def count_erasure(self) -> None:
        """Rows left memory or changed slots, perhaps rows of open lookups."""
        self.removals += 1
        self.erasures += 1


NO_NEW_KEYS = np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.int64)


class Placement(NamedTuple):
    """The slots of a batch's keys. N are the new keys, whose slots hold no row yet; their keys are on the host too."""

    slots_U: Array
    new_N: Array  # positions in U
    positions_N: Int64Array  # the same on the host
    features_N: UInt16Array
    ids_N: Int64Array


class PredictedMisses(NamedTuple):
    """The keys of a batch that were not in memory when it was prefetched, in the order of the batch.

    The prediction holds while the two counters are those of memory.changes.
    """

    writes: int
    removals: int
    positions_N: Int64Array  # in U
    features_N: UInt16Array
    ids_N: Int64Array


EVICTED_ROWS_PER_STEP = 65536
FEW_KEYS = 1024
SMALL_BATCHES = 256  # batches in a row that fit the planned overflow area, before an enlarged one shrinks again


class ResidentRows:
    """The slots of one store on its device. Evicted rows are passed to the eviction sink before their slots are reused.

    Arrays of U are on the device. Evicted rows cross to the host in one copy.
    """

    def __init__(
        self, ops: Ops, capacity: Capacity, layout: RowLayout, eviction_sink: EvictionSink, quotas: Quotas
    ) -> None:
        self.ops, self.eviction_sink, self.quotas = ops, eviction_sink, quotas
        self.store = ops.allocate(capacity.num_slots, capacity.num_overflow, layout)
        self.pins = PinSet()
        self.changes = ChangeCounters()
        self.num_rows = 0
        self.num_overflowed = 0
        self.present_features: set[int] = set()  # features that ever had a row here
        self.max_in_overflow = 0  # an upper bound: while it is 0 the device need not be asked
        self._planned_overflow = capacity.num_overflow
        self._releases_applied = True
        self._small_batches = 0

    @property
    def num_pinned(self) -> int:
        """Open lookups."""
        self.eviction_sink.drain_inflight()
        self.apply_releases()
        return len(self.pins)

    def pin(self) -> int:
        """Start a new tick. Rows stamped with it stay in memory until it is released."""
        self.apply_releases()
        return self.pins.pin()

    @on_current_stream
    def release(self, tick: int) -> None:
        """Release the rows of a lookup, and evict those in the overflow area.

        The eviction is left to the next lookup if it would have to wait for the device.
        """
        self.pins.release_later(tick)
        self.apply_releases(may_wait=False)

    def release_later(self, tick: int) -> None:
        """Queue a release for the next call. Safe in any thread at any time."""
        self.pins.release_later(tick)

    def apply_releases(self, *, may_wait: bool = True) -> None:
        """Apply queued releases: evict what they leave in the overflow area and what exceeds a quota."""
        if self.pins.apply_releases():
            self._releases_applied = False
        if self._releases_applied or (self.eviction_sink.has_inflight and not may_wait):
            return
        self._releases_applied = True
        self.eviction_sink.drain_inflight()
        num_used = 0
        if self.max_in_overflow:
            slots_V = self.ops.overflow_slots(self.store, self.pins.protect_now())
            num_used = len(slots_V)
            if num_used:
                self._evict(slots_V, *self.ops.keys_of(self.store, slots_V), EvictionReason.CAPACITY)
                self.ops.erase(self.store, slots_V)
                self.changes.count_removal()
            self.max_in_overflow = self.max_in_overflow - num_used if self.pins else 0
        self._shrink_overflow(num_used)
        self.enforce_quotas()

    def find_or_insert(
        self, features_U: Array, ids_U: Array, key_hash_U: Array, predicted: PredictedMisses | None = None
    ) -> Placement:
        """Give every key a slot and stamp it with the current tick; the slots of new keys hold no row yet.

        With a prediction that still holds nothing waits for the device: the victims arrive before the next lookup.
        """
        xp = self.ops.xp
        if predicted is not None and self._prediction_holds(predicted):
            return self._insert_predicted(features_U, ids_U, key_hash_U, predicted)
        placement, num_crowded = self._find_or_insert(features_U, ids_U, key_hash_U)
        if num_crowded:
            slots_U, placements = placement.slots_U, [placement]
            while len(homeless := xp.flatnonzero(slots_U == NO_SLOT)):
                # sized for a batch whose keys all fall into one bucket, beside the rows of open lookups
                self.store = self.ops.grow_overflow(self.store, 2 * self.store.num_overflow + len(homeless))
                more, _ = self._find_or_insert(features_U[homeless], ids_U[homeless], key_hash_U[homeless])
                slots_U[homeless] = more.slots_U
                (homeless_N,) = self.ops.fetch(homeless)
                placements.append(more._replace(new_N=homeless[more.new_N], positions_N=homeless_N[more.positions_N]))
            new_N = xp.concatenate([part.new_N for part in placements])
            on_host = (np.concatenate(column) for column in list(zip(*placements, strict=True))[2:])
            placement = Placement(slots_U, new_N, *on_host)
            num_overflowed = int(xp.count_nonzero(slots_U[new_N] >= self.store.num_slots))
            self.num_overflowed += num_overflowed
            self.max_in_overflow += num_overflowed
        if len(placement.new_N):
            self.changes.count_write()
        return placement

    def find(self, features_U: Array, ids_U: Array) -> Array:
        """The slots of keys, NO_SLOT for keys that are not in memory. The keys may be on the host or on the device."""
        features_U, ids_U = self.ops.put(features_U, ids_U)
        return self.ops.find(self.store, features_U, ids_U, self.ops.hash_keys(features_U, ids_U))

    def erase(self, slots_N: Array) -> None:
        """Delete the rows in these slots. They are not passed to the eviction sink."""
        if self.quotas and len(slots_N):
            self.quotas.remove(self.ops.fetch(self.ops.keys_of(self.store, slots_N)[0])[0])
        self.ops.erase(self.store, slots_N)
        self.num_rows -= len(slots_N)
        self.changes.count_erasure()

    def read(
        self, slots_N: Array, features_N: Array, ids_N: Array, spread: Spread = run_inline
    ) -> tuple[RowBlock, Int64Array]:
        """Copies of rows on the host, and their flags. The keys must be those of the slots, on the device."""
        columns = self.ops.read(self.store, slots_N, spread)
        *rows, flags_N = self.ops.fetch(features_N, ids_N, *columns)
        return RowBlock(*rows), flags_N

    def write(self, slots_N: Array, rows: RowBlock, flags_N: Int64Array) -> None:
        """Write rows of the host into slots, with these flags."""
        columns = self.ops.put(*rows.contents, flags_N)
        self.ops.scatter(self.store, slots_N, RowColumns(*columns))

    def expired_positions(self, slots_U: Array, features_U: Array, cutoffs: ExpiryCutoffs) -> Array:
        """The positions in U of rows that have expired; may be padded with -1 (see springtide.kernels.ops.Ops)."""
        if not cutoffs:
            return self.ops.xp.empty(0, np.int64)
        return self.ops.find_expired(self.store, slots_U, features_U, cutoffs.by_feature_F)

    def expired_slots(self, start: int, stop: int, cutoffs: ExpiryCutoffs) -> Array:
        """Those of the slots start..stop whose rows have expired; may be padded with NO_SLOT."""
        return self.ops.expired_slots(self.store, start, min(stop, self.store.num_slots), cutoffs.by_feature_F)

    def occupied(self) -> Array:
        """The slots that hold a row."""
        return self.ops.occupied_slots(self.store, 0, self.store.num_slots + self.store.num_overflow)

    def features(self) -> UInt16Array:
        """The features of all rows, one number a row, on the host."""
        features_N: UInt16Array = self.ops.fetch(self.ops.keys_of(self.store, self.occupied())[0])[0]
        return features_N

    def num_bytes(self) -> int:
        """Bytes of the rows, the index, the overflow area and the list of recently evicted keys."""
        return self.store.num_bytes + self.eviction_sink.num_bytes()

    def evict_expired(self, slots_N: Array) -> None:
        """Delete expired rows; the list may be padded."""
        slots_N = self.ops.unpadded(slots_N)
        if len(slots_N):
            keys = self.ops.keys_of(self.store, slots_N)
            self.eviction_sink.count_expired(*keys, self.pins.clock)
            if self.eviction_sink.removals.wanted:
                self.eviction_sink.remove_expired(*self.read(slots_N, *keys))
            self.erase(slots_N)

    def enforce_quotas(self) -> None:
        """Evict the coldest unpinned rows of features that exceed their quota."""
        for feature, excess in self.quotas.excess(self.store.num_slots).items():
            slots_N = self.ops.lowest_scores(self.store, feature, excess, self.pins.protect_now())
            self._evict_and_erase(slots_N, EvictionReason.QUOTA)

    def resize(self, num_slots: int, num_overflow: int) -> None:
        """Change the number of slots; rows that no longer fit are evicted. ValueError while lookups are open."""
        if self.num_pinned:
            raise ValueError("the table cannot change its size while lookups are open: update or release them first")
        crowded_N = self.ops.rows_without_room(self.store, num_slots)
        for start in range(0, len(crowded_N), EVICTED_ROWS_PER_STEP):
            self._evict_and_erase(crowded_N[start : start + EVICTED_ROWS_PER_STEP], EvictionReason.RESIZE)
        self.store = self.ops.resize(self.store, num_slots)
        self.store = self.ops.reset_overflow(self.store, num_overflow)
        self.eviction_sink.resize(num_slots)
        self._planned_overflow = num_overflow
        self.changes.count_erasure()

    def _shrink_overflow(self, num_used: int) -> None:
        """Return an overflow area that one large batch enlarged to its planned size, once it is no longer needed."""
        if self.store.num_overflow > self._planned_overflow:
            self._small_batches = self._small_batches + 1 if num_used <= self._planned_overflow else 0
            if self._small_batches >= SMALL_BATCHES and not self.pins:
                self.store = self.ops.reset_overflow(self.store, self._planned_overflow)
                self.changes.count_removal()
                self._small_batches = 0

    def _find_or_insert(self, features_U: Array, ids_U: Array, key_hash_U: Array) -> tuple[Placement, int]:
        """The placement, and the number of keys that found no room in their bucket."""
        inserted = self.ops.find_or_insert(
            self.store, features_U, ids_U, key_hash_U, self.pins.clock, self.pins.protect_from(self.pins.clock)
        )
        new_N, victim_keys, victim_columns = inserted.new_N, [], []
        if not len(new_N):
            return Placement(inserted.slots_U, new_N, *NO_NEW_KEYS), inserted.num_overflowed
        if len(inserted.victim_slots_V):
            # the victims are copied out before anything is written into their slots
            victim_keys = [inserted.victim_features_V, inserted.victim_ids_V]
            victim_columns = [*self.ops.read(self.store, inserted.victim_slots_V)]
        new_keys = new_N, features_U[new_N], ids_U[new_N]
        positions_N, features_N, ids_N, *victims = self.ops.fetch(*new_keys, *victim_keys, *victim_columns)
        self._on_insert(features_N)
        if victims:
            self._on_evict(RowBlock(*victims[:-1]), victims[-1], EvictionReason.CAPACITY, self.pins.clock)
        return Placement(inserted.slots_U, new_N, positions_N, features_N, ids_N), inserted.num_overflowed

    def _prediction_holds(self, predicted: PredictedMisses) -> bool:
        """Return True if exactly these keys are new and each finds a slot, in the overflow area if need be."""
        if self.ops.readback_delay == 0:  # nothing to gain: reading the result of an insertion costs no wait
            return False
        is_current = (self.changes.writes, self.changes.removals) == (predicted.writes, predicted.removals)
        return is_current and len(predicted.ids_N) <= self.store.num_overflow - self.max_in_overflow

    def _insert_predicted(
        self, features_U: Array, ids_U: Array, key_hash_U: Array, predicted: PredictedMisses
    ) -> Placement:
        num_new, tick = len(predicted.ids_N), self.pins.clock
        inserted = self.ops.find_or_insert(
            self.store, features_U, ids_U, key_hash_U, tick, self.pins.protect_from(tick), num_new
        )
        if num_new:
            columns = self.ops.read(self.store, inserted.victim_slots_V)
            victims = inserted.victim_slots_V, inserted.victim_features_V, inserted.victim_ids_V
            wait = self.ops.download_async(inserted.num_overflowed, *victims, *columns)
            self.eviction_sink.add_inflight(lambda: self._receive_victims(tick, *wait()))
            self._on_insert(predicted.features_N)
            self.changes.count_write()
        return Placement(inserted.slots_U, inserted.new_N, predicted.positions_N, predicted.features_N, predicted.ids_N)

    def _receive_victims(self, tick: int, num_crowded_1: Int64Array, slots_V: Int64Array, *columns: Any) -> None:
        """Pass on the rows evicted for predicted keys, now that they have arrived on the host."""
        self.num_overflowed += int(num_crowded_1[0])
        self.max_in_overflow += int(num_crowded_1[0])
        is_victim_V = slots_V != NO_SLOT
        if is_victim_V.any():
            *rows, flags_V = (column[is_victim_V] for column in columns)
            self._on_evict(RowBlock(*rows), flags_V, EvictionReason.CAPACITY, tick)

    def _on_insert(self, features_N: UInt16Array) -> None:
        self.num_rows += len(features_N)
        self.quotas.add(features_N)
        many = len(features_N) > FEW_KEYS  # counting them costs as much as the highest feature number
        self.present_features.update((np.flatnonzero(np.bincount(features_N)) if many else features_N).tolist())

    def _on_evict(self, rows: RowBlock, flags_V: Int64Array, reason: EvictionReason, tick: int) -> None:
        self.num_rows -= len(rows)
        self.quotas.remove(rows.feature)
        self.eviction_sink.evict(rows, flags_V, reason, tick)

    def _evict(self, slots_V: Array, features_V: Array, ids_V: Array, reason: EvictionReason) -> None:
        self._on_evict(*self.read(slots_V, features_V, ids_V), reason, self.pins.clock)

    def _evict_and_erase(self, slots_V: Array, reason: EvictionReason) -> None:
        if len(slots_V):
            self._evict(slots_V, *self.ops.keys_of(self.store, slots_V), reason)
            self.ops.erase(self.store, slots_V)
            self.changes.count_erasure()


# a call sweeps this part of the slots, but never so many that a batch is delayed noticeably
SWEEP_PARTS, MAX_SWEEP_SLOTS = 64, 65536


class ExpirySweep:
    """Advances by calls only, never by wall time, so that the same stream deletes the same rows."""

    def __init__(self, memory: ResidentRows, cutoffs: ExpiryCutoffs) -> None:
        self.memory, self.cutoffs = memory, cutoffs
        self.next_slot = 0
        self._pending: tuple[int, int, Callable[[], tuple[Any, ...]]] | None = None  # start, stop, expired slots

    def advance(self) -> None:
        """Sweep the next part of the slots, unless lookups are open."""
        if not self.cutoffs:
            return
        num_slots = self.memory.store.num_slots
        start = self.next_slot if self.next_slot < num_slots else 0
        self.next_slot = start + min(-(-num_slots // SWEEP_PARTS), MAX_SWEEP_SLOTS)
        if self.memory.num_pinned == 0:
            self._sweep(start, self.next_slot)

    def _sweep(self, start: int, stop: int) -> None:
        """Delete expired rows: of these slots if that needs no wait, else of those of the call before."""
        expired = self.memory.expired_slots(start, stop, self.cutoffs)
        if self.memory.ops.readback_delay == 0:
            self.memory.evict_expired(expired)
            return
        before, self._pending = self._pending, (start, stop, self.memory.ops.download_async(expired))
        if before is not None and (before[2]()[0] != NO_SLOT).any():
            # listed again, because some may have been updated since
            self.memory.evict_expired(self.memory.expired_slots(*before[:2], self.cutoffs))
