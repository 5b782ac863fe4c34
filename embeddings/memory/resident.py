"""The resident tier: which keys have a slot, which of them must stay, and what leaves when room is needed."""

# U unique keys, N some of them, V victims
from typing import Any

import numpy as np

from embeddings.memory.capacity import Capacity
from embeddings.memory.eviction import Departures, Reason
from embeddings.memory.pins import Holds
from embeddings.memory.placement import NOTHING_NEW, Foreseen, Settled
from embeddings.policy.quotas import Quotas
from embeddings.policy.ttl import Horizons
from embeddings.rows import Int64Array, Rows, UInt16Array
from kernels.spec import NO_SLOT, Array, Ops, RowColumns, RowLayout, Spread, run_inline

LEAVING_ROWS = 65536  # rows that must leave do so in steps of so many
SMALL_BATCHES = 256


class Memory:
    """Slots of one store, on its device. Rows are handed to `departures` before their slots are written over.

    Arrays of U are the device's; what leaves crosses to the host in one copy.
    """

    def __init__(self, ops: Ops, capacity: Capacity, layout: RowLayout, departures: Departures, quotas: Quotas) -> None:
        self.ops, self.departures, self.quotas = ops, departures, quotas
        self.store = ops.allocate(capacity.num_slots, capacity.num_overflow, layout)
        self.holds = Holds()
        self.num_rows = 0
        self.num_overflowed = 0
        self.present_features: set[int] = set()  # that ever had a row here
        self.erasures = 0  # a lookup that is older than the newest one looks where its rows are
        self.removals = 0  # of rows, by whatever: what was missing before the newest one may be missing with others
        self.writes = 0  # placings, forgettings, bases: what was recalled before the newest one may be stale
        self._planned_overflow = capacity.num_overflow
        self.most_in_overflow = 0  # none, and nobody has to ask the device
        self._is_settled = True
        self._small_batches = 0  # in a row, which an overflow area as planned would have had room for

    @property
    def num_held(self) -> int:
        """Lookups whose rows must stay."""
        self.departures.land()
        self.settle()
        return len(self.holds)

    def hold(self) -> int:
        """A new tick of the clock: rows stamped with it stay until it is released."""
        self.settle()
        return self.holds.hold()

    def release(self, tick: int) -> None:
        """Lets go of a lookup's rows; those in the overflow area leave at once, as evictions do.

        With the next look-up where it would take a wait for the device to know whether there are any.
        """
        self.holds.abandon(tick)
        self.settle(may_wait=False)

    def abandon(self, tick: int) -> None:
        """A release that takes place later; safe from any thread at any time."""
        self.holds.abandon(tick)

    def settle(self, *, may_wait: bool = True) -> None:
        """Makes good the releases that were only announced."""
        if self.holds.settle():
            self._is_settled = False
        if self._is_settled or (self.departures.is_expecting and not may_wait):
            return
        self._is_settled = True
        self.departures.land()
        num_used = 0
        if self.most_in_overflow:
            slots_V = self.ops.overflow(self.store, self.holds.protect_now())
            num_used = len(slots_V)
            if num_used:
                self._leave(slots_V, *self.ops.keys_of(self.store, slots_V), Reason.CAPACITY)
                self.ops.erase(self.store, slots_V)
                self.removals += 1
            self.most_in_overflow = self.most_in_overflow - num_used if self.holds else 0
        self._shrink_overflow(num_used)
        self.trim()

    def place(self, features_U: Array, ids_U: Array, mixed_U: Array, foreseen: Foreseen | None = None) -> Settled:
        """A slot for every key, stamped now; the new ones hold no row yet.

        Where they were foreseen nobody waits for the device: what leaves for them comes with the next look-up.
        """
        xp = self.ops.xp
        if foreseen is not None and self._is_true(foreseen):
            return self._place_foreseen(features_U, ids_U, mixed_U, foreseen)
        settled, num_crowded = self._place(features_U, ids_U, mixed_U)
        if num_crowded:
            slots_U, new = settled.slots_U, [settled]
            while len(homeless := xp.flatnonzero(slots_U == NO_SLOT)):
                # sized for all keys of a batch in one bucket, beside those of lookups that are still held
                self.store = self.ops.grow_overflow(self.store, 2 * self.store.num_overflow + len(homeless))
                more, _ = self._place(features_U[homeless], ids_U[homeless], mixed_U[homeless])
                slots_U[homeless] = more.slots_U
                (homeless_N,) = self.ops.fetch(homeless)
                new.append(more._replace(new_N=homeless[more.new_N], positions_N=homeless_N[more.positions_N]))
            new_N = xp.concatenate([part.new_N for part in new])
            settled = Settled(slots_U, new_N, *(np.concatenate(column) for column in list(zip(*new, strict=True))[2:]))
            num_overflowed = int(xp.count_nonzero(slots_U[new_N] >= self.store.num_slots))
            self.num_overflowed += num_overflowed
            self.most_in_overflow += num_overflowed
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
            self.quotas.left(self.ops.fetch(self.ops.keys_of(self.store, slots_N)[0])[0])
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

    def dead(self, slots_U: Array, features_U: Array, horizons: Horizons) -> Array:
        """The positions of keys whose rows in memory are forgotten by rule; on a device -1 among them."""
        if not horizons:
            return self.ops.xp.empty(0, np.int64)
        return self.ops.dead(self.store, slots_U, features_U, horizons.by_feature_F)

    def num_bytes(self) -> int:
        """Of rows, index, overflow area, and the marks of who left."""
        return self.store.num_bytes + self.departures.num_bytes()

    def occupied(self) -> Array:
        """The slots that hold a row."""
        return self.ops.occupied(self.store, 0, self.store.num_slots + self.store.num_overflow)

    def features(self) -> UInt16Array:
        """The features of all rows on the host, one number a row."""
        features_N: UInt16Array = self.ops.fetch(self.ops.keys_of(self.store, self.occupied())[0])[0]
        return features_N

    def expired(self, start: int, stop: int, horizons: Horizons) -> Array:
        """Those of the slots start..stop whose rows are forgotten by rule; on a device NO_SLOT among them."""
        return self.ops.expired(self.store, start, min(stop, self.store.num_slots), horizons.by_feature_F)

    def remove(self, slots_N: Array) -> None:
        """Rows that are forgotten by rule leave; nothing is kept of them."""
        if not self.ops.on_host:
            slots_N = slots_N[slots_N != NO_SLOT]
        if len(slots_N):
            self.departures.expire(*self.ops.keys_of(self.store, slots_N), self.holds.clock)
            self.erase(slots_N)

    def trim(self) -> None:
        """The coldest rows of features over their quota leave, as far as nobody holds them."""
        for feature, excess in self.quotas.excess(self.store.num_slots).items():
            slots_N = self.ops.lowest(self.store, feature, excess, self.holds.protect_now())
            self._leave_and_erase(slots_N, Reason.QUOTA)

    def resize(self, num_slots: int, num_overflow: int) -> None:
        """As many slots from now on; rows that find no room leave. ValueError while somebody holds rows."""
        if self.num_held:
            raise ValueError("the table cannot change its size while look-ups are held: update or release them first")
        crowded_N = self.ops.crowded(self.store, num_slots)
        for start in range(0, len(crowded_N), LEAVING_ROWS):
            self._leave_and_erase(crowded_N[start : start + LEAVING_ROWS], Reason.RESIZE)
        self.store = self.ops.resize(self.store, num_slots)
        self.store = self.ops.reset_overflow(self.store, num_overflow)
        self.departures.resize(num_slots)
        self._planned_overflow = num_overflow
        self.erasures += 1
        self.removals += 1

    def _shrink_overflow(self, num_used: int) -> None:
        """What one large batch needed is given back once many others did without."""
        if self.store.num_overflow > self._planned_overflow:
            self._small_batches = self._small_batches + 1 if num_used <= self._planned_overflow else 0
            if self._small_batches >= SMALL_BATCHES and not self.holds:
                self.store = self.ops.reset_overflow(self.store, self._planned_overflow)
                self.removals += 1
                self._small_batches = 0

    def _place(self, features_U: Array, ids_U: Array, mixed_U: Array) -> tuple[Settled, int]:
        """Also how many keys found no room in their bucket."""
        placed = self.ops.find_or_insert(
            self.store, features_U, ids_U, mixed_U, self.holds.clock, self.holds.protect_from(self.holds.clock)
        )
        new_N, leaving, columns = placed.new_N, [], []
        if not len(new_N):
            return Settled(placed.slots_U, new_N, *NOTHING_NEW), placed.num_crowded
        if len(placed.victim_slots_V):
            # the victims are copied out before anything is written into their rows
            leaving = [placed.victim_features_V, placed.victim_ids_V]
            columns = [*self.ops.read(self.store, placed.victim_slots_V)]
        new = new_N, features_U[new_N], ids_U[new_N]
        positions_N, features_N, ids_N, *left = self.ops.fetch(*new, *leaving, *columns)
        self._welcome(features_N)
        if left:
            self._see_off(Rows(*left[:-1]), left[-1], Reason.CAPACITY, self.holds.clock)
        return Settled(placed.slots_U, new_N, positions_N, features_N, ids_N), placed.num_crowded

    def _is_true(self, foreseen: Foreseen) -> bool:
        """Whether just these keys are new, and each finds a slot, be it in the overflow area."""
        num_free = self.store.num_overflow - self.most_in_overflow
        is_old = (self.writes, self.removals) != (foreseen.writes, foreseen.removals)
        return not (self.ops.on_host or is_old or len(foreseen.ids_N) > num_free)

    def _place_foreseen(self, features_U: Array, ids_U: Array, mixed_U: Array, foreseen: Foreseen) -> Settled:
        num_new, tick = len(foreseen.ids_N), self.holds.clock
        placed = self.ops.find_or_insert(
            self.store, features_U, ids_U, mixed_U, tick, self.holds.protect_from(tick), num_new
        )
        if num_new:
            columns = self.ops.read(self.store, placed.victim_slots_V)
            leaving = placed.victim_slots_V, placed.victim_features_V, placed.victim_ids_V
            arrive = self.ops.download_async(placed.num_crowded, *leaving, *columns)
            self.departures.expect(lambda: self._land(tick, *arrive()))
            self._welcome(foreseen.features_N)
            self.writes += 1
        return Settled(placed.slots_U, placed.new_N, foreseen.positions_N, foreseen.features_N, foreseen.ids_N)

    def _land(self, tick: int, num_crowded_1: Int64Array, slots_V: Int64Array, *columns: Any) -> None:
        """What left for keys that were foreseen has come to the host."""
        self.num_overflowed += int(num_crowded_1[0])
        self.most_in_overflow += int(num_crowded_1[0])
        left_V = slots_V != NO_SLOT
        if left_V.any():
            *rows, flags_V = (column[left_V] for column in columns)
            self._see_off(Rows(*rows), flags_V, Reason.CAPACITY, tick)

    def _welcome(self, features_N: UInt16Array) -> None:
        self.num_rows += len(features_N)
        self.quotas.arrived(features_N)
        self.present_features.update(np.flatnonzero(np.bincount(features_N)).tolist())

    def _leave(self, slots_V: Array, features_V: Array, ids_V: Array, reason: Reason) -> None:
        self._see_off(*self.read(slots_V, features_V, ids_V), reason, self.holds.clock)

    def _see_off(self, rows: Rows, flags_V: Int64Array, reason: Reason, tick: int) -> None:
        self.num_rows -= len(rows)
        self.quotas.left(rows.features)
        self.departures.leave(rows, flags_V, reason, tick)

    def _leave_and_erase(self, slots_V: Array, reason: Reason) -> None:
        if len(slots_V):
            self._leave(slots_V, *self.ops.keys_of(self.store, slots_V), reason)
            self.ops.erase(self.store, slots_V)
            self.erasures += 1
            self.removals += 1
