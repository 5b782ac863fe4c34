"""The resident tier: which keys have a slot, which of them must stay, and what leaves when room is needed."""

# U unique keys, N some of them, V victims
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from embeddings.capacity import Capacity
from embeddings.rows import Int64Array, Rows, UInt16Array
from kernels.spec import NO_SLOT, TOUCHED, Columns, Layout, Placed, Verbs

UInt64Array = npt.NDArray[np.uint64]
Leaving = Callable[[Rows, Int64Array], None]  # rows that leave memory, and their flags


class Memory:
    """Slots of one store. `leaving` is called with rows before their slots are written over."""

    def __init__(self, verbs: Verbs, capacity: Capacity, dim: int, state_width: int, leaving: Leaving) -> None:
        self.verbs = verbs
        self.store = verbs.allocate(capacity.num_slots, capacity.num_overflow, Layout(dim, state_width))
        self.leaving = leaving
        self.clock = 0  # one tick a lookup: the score of the rows it takes
        self.num_rows = 0
        self.num_overflowed = 0
        self.erasures = 0  # a lookup that is older than the newest one looks where its rows are
        self._held: set[int] = set()  # the scores of lookups not yet released
        self._abandoned: deque[int] = deque()  # of those, the lookups that were dropped since

    def hold(self) -> int:
        """A new tick of the clock: rows that get its score stay until it is released."""
        self.settle()
        self.clock += 1
        self._held.add(self.clock)
        return self.clock

    def release(self, score: int) -> None:
        """Lets go of a lookup's rows; those in the overflow area leave at once, as evictions do."""
        self._abandoned.append(score)
        self.settle()

    def abandon(self, score: int) -> None:
        """A release that takes place later; safe from any thread at any time."""
        self._abandoned.append(score)

    def settle(self) -> None:
        """Makes good the releases that were only announced."""
        if not self._abandoned:
            return
        while self._abandoned:
            self._held.discard(self._abandoned.popleft())
        slots_V = self.verbs.overflow(self.store, min(self._held, default=self.clock + 1))
        if len(slots_V):
            self._leave(slots_V, *self.verbs.keys_of(self.store, slots_V))
            self.verbs.erase(self.store, slots_V)

    def place(self, features_U: UInt16Array, ids_U: Int64Array, mixed_U: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """A slot for every key, with the newest score, and the positions of the new ones: they hold no row yet."""
        placed = self._place(features_U, ids_U, mixed_U)
        slots_U: Int64Array = placed.slots_U
        new: list[Int64Array] = [placed.new_N]
        while len(homeless := np.flatnonzero(slots_U == NO_SLOT)):
            # sized for all keys of a batch in one bucket, beside those of lookups that are still held
            self.store = self.verbs.grow_overflow(self.store, 2 * self.store.num_overflow + len(homeless))
            placed = self._place(features_U[homeless], ids_U[homeless], mixed_U[homeless])
            slots_U[homeless] = placed.slots_U
            new.append(homeless[placed.new_N])
        new_N = np.concatenate(new) if len(new) > 1 else new[0]
        self.num_overflowed += int(np.count_nonzero(slots_U[new_N] >= self.store.num_slots))
        return slots_U, new_N

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> Int64Array:
        """The slots, NO_SLOT where the key is not in memory."""
        slots_U: Int64Array = self.verbs.find(self.store, features_U, ids_U, self.verbs.mix_keys(features_U, ids_U))
        return slots_U

    def erase(self, slots_N: Int64Array) -> None:
        """The keys of these slots have no row here any more, and nothing is kept of it."""
        self.verbs.erase(self.store, slots_N)
        self.num_rows -= len(slots_N)
        self.erasures += 1

    def read(self, slots_N: Int64Array, features_N: UInt16Array, ids_N: Int64Array) -> tuple[Rows, Int64Array]:
        """Copies of rows, and their flags."""
        columns = self.verbs.read(self.store, slots_N)
        return Rows(features_N, ids_N, *columns[:4]), columns.flags_N

    def write(self, slots_N: Int64Array, rows: Rows, flags_N: Int64Array) -> None:
        """Rows into slots, with these flags."""
        columns = Columns(rows.values, rows.states, rows.counts, rows.last_seen, flags_N)
        self.verbs.scatter(self.store, slots_N, columns)

    def occupied(self) -> Int64Array:
        """The slots that hold a row."""
        num_rows = self.store.num_slots + self.store.num_overflow
        slots_N: Int64Array = self.verbs.occupied(self.store, 0, num_rows)
        return slots_N

    def check(self, known_touched: set[int] | None) -> None:
        """AssertionError where index and rows contradict each other, or a touched slot is not among the known."""
        slots_N = self.occupied()
        features_N, ids_N = self.verbs.keys_of(self.store, slots_N)
        assert np.array_equal(self.find(features_N, ids_N), slots_N), "a key is not found where it stands"
        assert len(slots_N) == self.num_rows, f"{len(slots_N)} keys stand, {self.num_rows} are counted"
        flags_N = self.verbs.read(self.store, slots_N).flags_N
        touched = set(slots_N[(flags_N & TOUCHED) != 0].tolist())
        assert known_touched is None or touched <= known_touched, (
            f"touched, and nobody knows: {touched - known_touched}"
        )

    def _place(self, features_U: UInt16Array, ids_U: Int64Array, mixed_U: UInt64Array) -> Placed:
        protect_from = min(self._held, default=self.clock)
        placed = self.verbs.find_or_insert(self.store, features_U, ids_U, mixed_U, self.clock, protect_from)
        self.num_rows += len(placed.new_N)
        if len(placed.victim_slots_V):
            # the victims are copied out before anything is written into their rows
            self._leave(placed.victim_slots_V, placed.victim_features_V, placed.victim_ids_V)
        return placed

    def _leave(self, slots_V: Int64Array, features_V: UInt16Array, ids_V: Int64Array) -> None:
        self.num_rows -= len(slots_V)
        self.leaving(*self.read(slots_V, features_V, ids_V))
