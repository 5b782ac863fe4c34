"""What the stream is remembered for: the last ids of a user as a sequence, the last value of an item's field.

A value is a function of event time alone, not of arrival, batch or version. A sample of time t reads at tick
r = t // T. What became known at time u may be read from tick u // T + 2 on: one to two ticks later. So no sample reads
itself, nor another of its request, and a server that is at most T behind reads what the trainer will read for the same
sample.

A row has the newest elements of one id, as whole numbers below 2**24 in float32: the number of elements, then each one,
the oldest first: from which tick after its own it may be read, its event time (2 numbers), its values (3 numbers each).
kernels/cpu/memory_rows has the same functions for Numba, bitwise equal.
"""

# N samples, K values of an element, L elements that a sample reads at most, M elements; U rows of D numbers, of which
# each of C elements has W
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array

MAX_PENDING_TICKS = 16
PENDING_ELEMENTS = 16  # of a sequence that are not read yet by every sample
MAX_ROW = 4096  # numbers
NUM_COUNTS, NUM_TIMES, NUM_VALUE = 1, 3, 3  # numbers of a row, of an element, of each of its values
ROW_PREFIX = "memory:"  # of what its rows are called; no field is called so


def least_tick_ms(delay_ms: int, lateness_ms: int) -> int:
    """Return the shortest tick with which such a delay and lateness need no more ticks than a row has."""
    return -(-(delay_ms + lateness_ms) // (MAX_PENDING_TICKS - 3))


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What the stream is remembered for, in rows of ids, and when it may be read. Times are in ms."""

    name: str  # of a sequence: `clicked`; of a field: `item_id.price`; of counters: `item`
    tick_ms: int = 1000
    known: str = "event"  # when a sample became known: "event", event time and delay; "record", Kafka's timestamp
    delay_ms: int = 0
    lateness_ms: int = 2000  # disorder that stays exact

    @property
    def row_name(self) -> str:
        """What its rows are called, beside those of features."""
        return ROW_PREFIX + self.name

    @property
    def pending_ticks(self) -> int:
        """The ticks of which every sample must still be able to read as if they had not come."""
        return -(-(self.delay_ms + self.lateness_ms) // self.tick_ms) + 3

    @property
    def id_features(self) -> tuple[str, ...]:
        """The categorical features whose ids have rows."""
        raise NotImplementedError

    @property
    def row_ttl_seconds(self) -> int | None:
        """How long after its newest sample no sample reads a row any more; None: always one may."""
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """The numbers in a row."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Memory(Remembered):
    """The newest elements of each id of one feature. Times are in ms."""

    of: str  # the categorical feature whose ids have rows
    keep: tuple[str, ...]  # the fields of an element
    last: int  # elements that a sample reads at most
    when: str | None = None  # the label above 0 of samples that are remembered; None: all are
    distinct: str | None = None  # the field of `keep` whose value counts once, at its newest
    ttl_ms: int = 0  # older elements are not read; 0: all are
    num_values: int = 1  # of an element: its ids; of a list its length, and as many ids as it has at most
    has_gap: bool = False  # of a sequence: `gap_name` is a feature
    is_sequence: bool = True  # False: the newest element's value takes the place of the field's

    @property
    def id_features(self) -> tuple[str, ...]:
        return (self.of,)

    @property
    def row_ttl_seconds(self) -> int | None:
        """How long after its newest element no sample reads a row any more; None: always one may."""
        if not self.ttl_ms:
            return None
        return -(-(self.ttl_ms + self.pending_ticks * self.tick_ms) // 1000)

    @property
    def capacity(self) -> int:
        """The elements that a row has room for."""
        return self.last + (PENDING_ELEMENTS if self.is_sequence else self.pending_ticks + 1)

    @property
    def dim(self) -> int:
        """The numbers in a row."""
        return NUM_COUNTS + self.capacity * (NUM_TIMES + NUM_VALUE * self.num_values)

    @property
    def place_of_distinct(self) -> int:
        """The place of `distinct` in `keep`, -1 without."""
        return -1 if self.distinct is None else self.keep.index(self.distinct)

    @property
    def gap_name(self) -> str:
        """The feature with the time from each element to the sample."""
        return f"{self.name}.gap"

    @property
    def features(self) -> tuple[str, ...]:
        """The sequence features that it makes."""
        if not self.is_sequence:
            return ()
        return (*(f"{self.name}.{field}" for field in self.keep), *([self.gap_name] if self.has_gap else []))


class Elements(NamedTuple):
    """What samples read of a memory, the oldest first; beyond a sample's length there is nothing."""

    lengths_N: Int64Array
    event_ms_NL: Int64Array
    values_NLK: Int64Array

    @staticmethod
    def empty(num_samples: int, memory: Memory) -> "Elements":
        """Return what samples read where there is nothing, to be filled in."""
        shape = num_samples, memory.last
        return Elements(
            np.zeros(num_samples, np.int64), np.zeros(shape, np.int64), np.zeros((*shape, memory.num_values), np.int64)
        )


def read_rows(rows_UD: Float32Array, memory: Memory, event_ms_U: Int64Array) -> Elements:
    """Return what a sample of each time reads in each row; nothing in a row of NaN, which is that of an id without one.

    A row may have further numbers after those of the memory.
    """
    num_rows, num_values = len(rows_UD), memory.num_values
    has_row_U1 = ~np.isnan(rows_UD[:, :1])
    rows_UD = np.where(has_row_U1, rows_UD[:, : memory.dim], np.float32(0))
    numbers_UCW = rows_UD[:, NUM_COUNTS:].reshape(num_rows, memory.capacity, NUM_TIMES + NUM_VALUE * num_values)
    times_UC3 = numbers_UCW[:, :, :NUM_TIMES].astype(np.int64)
    event_ms_UC = times_UC3[:, :, 1] << 24 | times_UC3[:, :, 2]
    from_tick_UC = event_ms_UC // memory.tick_ms + times_UC3[:, :, 0]
    is_read_UC = np.arange(memory.capacity) < rows_UD[:, :1]
    is_read_UC &= from_tick_UC <= (event_ms_U // memory.tick_ms)[:, None]
    if memory.ttl_ms:
        is_read_UC &= event_ms_UC > event_ms_U[:, None] - memory.ttl_ms
    row_M, place_M = np.nonzero(is_read_UC)
    if (field := memory.place_of_distinct) >= 0:
        values_M = _whole(numbers_UCW[row_M, place_M], field)
        order = np.lexsort((-place_M, values_M, row_M))  # of each value in a row the newest first
        is_newest_M = np.ones(len(row_M), np.bool_)
        is_newest_M[order[1:]] = (np.diff(values_M[order]) != 0) | (np.diff(row_M[order]) != 0)
        row_M, place_M = row_M[is_newest_M], place_M[is_newest_M]
    ends_U = np.cumsum(np.bincount(row_M, minlength=num_rows))
    is_last_M = ends_U[row_M] - np.arange(len(row_M)) <= memory.last
    row_M, place_M = row_M[is_last_M], place_M[is_last_M]
    found = Elements.empty(num_rows, memory)
    found.lengths_N[:] = np.bincount(row_M, minlength=num_rows)
    at_M = np.arange(len(row_M)) - (np.cumsum(found.lengths_N) - found.lengths_N)[row_M]
    found.event_ms_NL[row_M, at_M] = event_ms_UC[row_M, place_M]
    numbers_MW = numbers_UCW[row_M, place_M]
    for field in range(num_values):
        found.values_NLK[row_M, at_M, field] = _whole(numbers_MW, field)
    return found


def _whole(numbers_MW: Float32Array, field: int) -> Int64Array:
    """Return one value of each element, from its three numbers."""
    start = NUM_TIMES + NUM_VALUE * field
    parts_M3 = numbers_MW[:, start : start + NUM_VALUE].astype(np.int64)
    whole_M: Int64Array = parts_M3[:, 0] << 48 | parts_M3[:, 1] << 24 | parts_M3[:, 2]
    return whole_M


def gap_ids(gap_ms_M: Int64Array) -> Int64Array:
    """Return the ids of the times from elements to a sample, in ms: the bit length of whole seconds."""
    seconds_M = np.maximum(gap_ms_M, 0) // 1000
    return np.frexp(seconds_M.astype(np.float64))[1].astype(np.int64)  # exact below 2**53
