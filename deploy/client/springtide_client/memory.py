"""What the stream is remembered for: the last ids of a user as a sequence, the last value of an item's field.

A value is a function of event time alone, not of arrival, batch or version. A sample of time t reads at tick
r = t // T. What became known at time u may be read from tick u // T + 2 on: one to two ticks later. So no sample reads
itself, nor another of its request, and a server that is at most T behind reads what the trainer will read for the same
sample.

A row has the newest elements of one id, as whole numbers below 2**24 in float32: the number of elements, then each one,
the oldest first: from which tick after its own it may be read, its event time (2 numbers), its values (3 numbers each).
kernels/cpu/memory_rows has the same functions for Numba, bitwise equal.
"""

# N samples, K values of an element, M elements, D numbers of a row
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array

MAX_PENDING_TICKS = 16
PENDING_ELEMENTS = 16  # of a sequence that are not read yet by every sample
MAX_ROW = 4096  # numbers
NUM_COUNTS, NUM_TIMES, NUM_VALUE = 1, 3, 3  # numbers of a row, of an element, of each of its values
ROW_PREFIX = "memory:"  # of what its rows are called; no field is called so


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
    """The elements of a row, or those of them that a sample reads, the oldest first."""

    from_tick_M: Int64Array  # of what they may be read from
    event_ms_M: Int64Array
    values_MK: Int64Array


def elements_of(row_D: Float32Array, memory: Memory) -> Elements:
    """Return all elements of a row; none for a row of NaN, which is that of an id without one."""
    num = 0 if np.isnan(row_D[0]) else int(row_D[0])
    width = NUM_TIMES + NUM_VALUE * memory.num_values
    numbers_MW = row_D[NUM_COUNTS : NUM_COUNTS + num * width].reshape(num, width).astype(np.int64)
    event_ms_M = numbers_MW[:, 1] << 24 | numbers_MW[:, 2]
    parts_MK3 = numbers_MW[:, NUM_TIMES:].reshape(num, memory.num_values, NUM_VALUE)
    values_MK = parts_MK3[:, :, 0] << 48 | parts_MK3[:, :, 1] << 24 | parts_MK3[:, :, 2]
    return Elements(event_ms_M // memory.tick_ms + numbers_MW[:, 0], event_ms_M, values_MK)


def read_elements(row_D: Float32Array, memory: Memory, event_ms: int) -> Elements:
    """Return what a sample of this time reads in a row: at most `memory.last` elements, the oldest first."""
    elements = elements_of(row_D, memory)
    is_read_M = elements.from_tick_M <= event_ms // memory.tick_ms
    if memory.ttl_ms:
        is_read_M &= elements.event_ms_M > event_ms - memory.ttl_ms
    read = np.flatnonzero(is_read_M)
    if (place := memory.place_of_distinct) >= 0 and len(read):
        newest_first = elements.values_MK[read[::-1], place]
        _, first = np.unique(newest_first, return_index=True)
        read = np.sort(read[::-1][first])
    read = read[-memory.last :]
    return Elements(*(column[read] for column in elements))


def gap_ids(gap_ms_M: Int64Array) -> Int64Array:
    """Return the ids of the times from elements to a sample, in ms: the bit length of whole seconds."""
    seconds_M = np.maximum(gap_ms_M, 0) // 1000
    return np.frexp(seconds_M.astype(np.float64))[1].astype(np.int64)  # exact below 2**53
