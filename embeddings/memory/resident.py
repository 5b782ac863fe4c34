"""The resident tier: which keys have a slot, which of them must stay, and what leaves when room is needed."""

# U unique keys, N some of them, V victims
from typing import Any

import numpy as np

from embeddings.memory.capacity import Capacity
from embeddings.memory.eviction import EvictionReason, EvictionSink
from embeddings.memory.pins import PinSet
from embeddings.memory.placement import NO_NEW_KEYS, Placement, PredictedMisses
from embeddings.policy.quotas import Quotas
from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.rows import Int64Array, Rows, UInt16Array
from kernels.ops import Ops
from kernels.types import NO_SLOT, Array, RowColumns, RowLayout, Spread, run_inline

EVICTED_ROWS_PER_STEP = 65536  # rows that must leave do so in steps of so many
SMALL_BATCHES = 256


class ResidentRows:
    """Slots of one store, on its device. Rows are handed to `departures` before their slots are written over.

    Arrays of U are the device's; what leaves crosses to the host in one copy.
    """

    def __init__(
        self, ops: Ops, capacity: Capacity, layout: RowLayout, departures: EvictionSink, quotas: Quotas
    ) -> None:
        self.ops, self.eviction_sink, self.quotas = ops, departures, quotas
        self.store = ops.allocate(capacity.num_slots, capacity.num_overflow, layout)
        self.pins = PinSet()
        self.num_rows = 0
        self.num_overflowed = 0
        self.present_features: set[int] = set()  # that ever had a row here
        self.erasures = 0  # a lookup that is older than the newest one looks where its rows are
        self.removals = 0  # of rows, by whatever: what was missing before the newest one may be missing with others
        self.writes = 0  # placings, forgettings, bases: what was recalled before the newest one may be stale
        self._planned_overflow = capacity.num_overflow
        self.max_in_overflow = 0  # none, and nobody has to ask the device
        self._releases_applied = True
        self._small_batches = 0  # in a row, which an overflow area as planned would have had room for

    @property
    def num_pinned(self) -> int:
        """Lookups whose rows must stay."""
        self.eviction_sink.drain_inflight()
        self.apply_releases()
        return len(self.pins)

    def pin(self) -> int:
        """A new tick of the clock: rows stamped with it stay until it is released."""
        self.apply_releases()
        return self.pins.pin()

    def release(self, tick: int) -> None:
        """Lets go of a lookup's rows; those in the overflow area leave at once, as evictions do.

        With the next look-up where it would take a wait for the device to know whether there are any.
        """
        self.pins.release_later(tick)
        self.apply_releases(may_wait=False)

    def release_later(self, tick: int) -> None:
        """A release that takes place later; safe from any thread at any time."""
        self.pins.release_later(tick)

    def apply_releases(self, *, may_wait: bool = True) -> None:
        """Makes good the releases that were only announced."""
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
                self.removals += 1
            self.max_in_overflow = self.max_in_overflow - num_used if self.pins else 0
        self._shrink_overflow(num_used)
        self.enforce_quotas()

    def find_or_insert(
        self, features_U: Array, ids_U: Array, mixed_U: Array, foreseen: PredictedMisses | None = None
    ) -> Placement:
        """A slot for every key, stamped now; the new ones hold no row yet.

        Where they were foreseen nobody waits for the device: what leaves for them comes with the next look-up.
        """
        xp = self.ops.xp
        if foreseen is not None and self._prediction_holds(foreseen):
            return self._insert_predicted(features_U, ids_U, mixed_U, foreseen)
        settled, num_overflowed = self._find_or_insert(features_U, ids_U, mixed_U)
        if num_overflowed:
            slots_U, new = settled.slots_U, [settled]
            while len(homeless := xp.flatnonzero(slots_U == NO_SLOT)):
                # sized for all keys of a batch in one bucket, beside those of lookups that are still held
                self.store = self.ops.grow_overflow(self.store, 2 * self.store.num_overflow + len(homeless))
                more, _ = self._find_or_insert(features_U[homeless], ids_U[homeless], mixed_U[homeless])
                slots_U[homeless] = more.slots_U
                (homeless_N,) = self.ops.fetch(homeless)
                new.append(more._replace(new_N=homeless[more.new_N], positions_N=homeless_N[more.positions_N]))
            new_N = xp.concatenate([part.new_N for part in new])
            settled = Placement(
                slots_U, new_N, *(np.concatenate(column) for column in list(zip(*new, strict=True))[2:])
            )
            num_overflowed = int(xp.count_nonzero(slots_U[new_N] >= self.store.num_slots))
            self.num_overflowed += num_overflowed
            self.max_in_overflow += num_overflowed
        if len(settled.new_N):
            self.writes += 1
        return settled

    def find(self, features_U: Array, ids_U: Array) -> Array:
        """The slots, NO_SLOT where the key is not in memory; keys of the host or the device."""
        features_U, ids_U = self.ops.put(features_U, ids_U)
        return self.ops.find(self.store, features_U, ids_U, self.ops.mix_keys(features_U, ids_U))

    def erase(self, slots_N: Array) -> None:
        """The keys of these slots have no row here any more, and nothing is kept of it."""
        if self.quotas and len(slots_N):
            self.quotas.remove(self.ops.fetch(self.ops.keys_of(self.store, slots_N)[0])[0])
        self.ops.erase(self.store, slots_N)
        self.num_rows -= len(slots_N)
        self.erasures += 1
        self.removals += 1

    def read(
        self, slots_N: Array, features_N: Array, ids_N: Array, spread: Spread = run_inline
    ) -> tuple[Rows, Int64Array]:
        """Copies of rows on the host, and their flags; the keys are those of the slots, on the device."""
        columns = self.ops.read(self.store, slots_N, spread)
        *rows, flags_N = self.ops.fetch(features_N, ids_N, *columns)
        return Rows(*rows), flags_N

    def write(self, slots_N: Array, rows: Rows, flags_N: Int64Array) -> None:
        """Rows of the host into slots, with these flags."""
        columns = self.ops.put(rows.values, rows.states, rows.counts, rows.last_seen, flags_N)
        self.ops.scatter(self.store, slots_N, RowColumns(*columns))

    def expired_positions(self, slots_U: Array, features_U: Array, horizons: ExpiryCutoffs) -> Array:
        """The positions of keys whose rows in memory are forgotten by rule; on a device -1 among them."""
        if not horizons:
            return self.ops.xp.empty(0, np.int64)
        return self.ops.find_expired(self.store, slots_U, features_U, horizons.by_feature_F)

    def num_bytes(self) -> int:
        """Of rows, index, overflow area, and the marks of who left."""
        return self.store.num_bytes + self.eviction_sink.num_bytes()

    def occupied(self) -> Array:
        """The slots that hold a row."""
        return self.ops.occupied_slots(self.store, 0, self.store.num_slots + self.store.num_overflow)

    def features(self) -> UInt16Array:
        """The features of all rows on the host, one number a row."""
        features_N: UInt16Array = self.ops.fetch(self.ops.keys_of(self.store, self.occupied())[0])[0]
        return features_N

    def expired_slots(self, start: int, stop: int, horizons: ExpiryCutoffs) -> Array:
        """Those of the slots start..stop whose rows are forgotten by rule; on a device NO_SLOT among them."""
        return self.ops.expired_slots(self.store, start, min(stop, self.store.num_slots), horizons.by_feature_F)

    def evict_expired(self, slots_N: Array) -> None:
        """Rows that are forgotten by rule leave; nothing is kept of them."""
        slots_N = self.ops.unpadded(slots_N)
        if len(slots_N):
            self.eviction_sink.count_expired(*self.ops.keys_of(self.store, slots_N), self.pins.clock)
            self.erase(slots_N)

    def enforce_quotas(self) -> None:
        """The coldest rows of features over their quota leave, as far as nobody holds them."""
        for feature, excess in self.quotas.excess(self.store.num_slots).items():
            slots_N = self.ops.lowest_scores(self.store, feature, excess, self.pins.protect_now())
            self._evict_and_erase(slots_N, EvictionReason.QUOTA)

    def resize(self, num_slots: int, num_overflow: int) -> None:
        """As many slots from now on; rows that find no room leave. ValueError while somebody holds rows."""
        if self.num_pinned:
            raise ValueError("the table cannot change its size while look-ups are held: update or release them first")
        crowded_N = self.ops.rows_without_room(self.store, num_slots)
        for start in range(0, len(crowded_N), EVICTED_ROWS_PER_STEP):
            self._evict_and_erase(crowded_N[start : start + EVICTED_ROWS_PER_STEP], EvictionReason.RESIZE)
        self.store = self.ops.resize(self.store, num_slots)
        self.store = self.ops.reset_overflow(self.store, num_overflow)
        self.eviction_sink.resize(num_slots)
        self._planned_overflow = num_overflow
        self.erasures += 1
        self.removals += 1

    def _shrink_overflow(self, num_used: int) -> None:
        """What one large batch needed is given back once many others did without."""
        if self.store.num_overflow > self._planned_overflow:
            self._small_batches = self._small_batches + 1 if num_used <= self._planned_overflow else 0
            if self._small_batches >= SMALL_BATCHES and not self.pins:
                self.store = self.ops.reset_overflow(self.store, self._planned_overflow)
                self.removals += 1
                self._small_batches = 0

    def _find_or_insert(self, features_U: Array, ids_U: Array, mixed_U: Array) -> tuple[Placement, int]:
        """Also how many keys found no room in their bucket."""
        placed = self.ops.find_or_insert(
            self.store, features_U, ids_U, mixed_U, self.pins.clock, self.pins.protect_from(self.pins.clock)
        )
        new_N, leaving, columns = placed.new_N, [], []
        if not len(new_N):
            return Placement(placed.slots_U, new_N, *NO_NEW_KEYS), placed.num_overflowed
        if len(placed.victim_slots_V):
            # the victims are copied out before anything is written into their rows
            leaving = [placed.victim_features_V, placed.victim_ids_V]
            columns = [*self.ops.read(self.store, placed.victim_slots_V)]
        new = new_N, features_U[new_N], ids_U[new_N]
        positions_N, features_N, ids_N, *left = self.ops.fetch(*new, *leaving, *columns)
        self._on_insert(features_N)
        if left:
            self._on_evict(Rows(*left[:-1]), left[-1], EvictionReason.CAPACITY, self.pins.clock)
        return Placement(placed.slots_U, new_N, positions_N, features_N, ids_N), placed.num_overflowed

    def _prediction_holds(self, foreseen: PredictedMisses) -> bool:
        """Whether just these keys are new, and each finds a slot, be it in the overflow area."""
        num_free = self.store.num_overflow - self.max_in_overflow
        is_old = (self.writes, self.removals) != (foreseen.writes, foreseen.removals)
        return not (self.ops.readback_delay == 0 or is_old or len(foreseen.ids_N) > num_free)

    def _insert_predicted(
        self, features_U: Array, ids_U: Array, mixed_U: Array, foreseen: PredictedMisses
    ) -> Placement:
        num_new, tick = len(foreseen.ids_N), self.pins.clock
        placed = self.ops.find_or_insert(
            self.store, features_U, ids_U, mixed_U, tick, self.pins.protect_from(tick), num_new
        )
        if num_new:
            columns = self.ops.read(self.store, placed.victim_slots_V)
            leaving = placed.victim_slots_V, placed.victim_features_V, placed.victim_ids_V
            arrive = self.ops.download_async(placed.num_overflowed, *leaving, *columns)
            self.eviction_sink.add_inflight(lambda: self._receive_victims(tick, *arrive()))
            self._on_insert(foreseen.features_N)
            self.writes += 1
        return Placement(placed.slots_U, placed.new_N, foreseen.positions_N, foreseen.features_N, foreseen.ids_N)

    def _receive_victims(self, tick: int, num_crowded_1: Int64Array, slots_V: Int64Array, *columns: Any) -> None:
        """What left for keys that were foreseen has come to the host."""
        self.num_overflowed += int(num_crowded_1[0])
        self.max_in_overflow += int(num_crowded_1[0])
        left_V = slots_V != NO_SLOT
        if left_V.any():
            *rows, flags_V = (column[left_V] for column in columns)
            self._on_evict(Rows(*rows), flags_V, EvictionReason.CAPACITY, tick)

    def _on_insert(self, features_N: UInt16Array) -> None:
        self.num_rows += len(features_N)
        self.quotas.add(features_N)
        self.present_features.update(np.flatnonzero(np.bincount(features_N)).tolist())

    def _evict(self, slots_V: Array, features_V: Array, ids_V: Array, reason: EvictionReason) -> None:
        self._on_evict(*self.read(slots_V, features_V, ids_V), reason, self.pins.clock)

    def _on_evict(self, rows: Rows, flags_V: Int64Array, reason: EvictionReason, tick: int) -> None:
        self.num_rows -= len(rows)
        self.quotas.remove(rows.features)
        self.eviction_sink.evict(rows, flags_V, reason, tick)

    def _evict_and_erase(self, slots_V: Array, reason: EvictionReason) -> None:
        if len(slots_V):
            self._evict(slots_V, *self.ops.keys_of(self.store, slots_V), reason)
            self.ops.erase(self.store, slots_V)
            self.erasures += 1
            self.removals += 1
