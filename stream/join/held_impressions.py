"""Impressions that wait for the end of their windows, or for a late event: in memory or in a scratch file."""

# N rows, P pairs of an event and an impression, U rows of several chunks
import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Columns
from springtide.stream.join.config import Look
from springtide.stream.join.event_index import Matches
from springtide.stream.join.held_bytes import HeldBytes, num_bytes_of
from springtide.stream.join.impression_index import ImpressionIndex
from springtide.stream.join.key_index import UInt64Array
from springtide.stream.join_state import LATE, MAX_INT, SamplePlaces
from springtide_client.array_types import BoolArray, Int64Array
from springtide_client.features import Features, IdStrings, Ragged

NO_ROWS = np.empty(0, np.int64)
MERGED_ROWS, MERGED_CHUNKS = 1 << 15, 64  # so many rows or chunks at most become one chunk


class DueRows(NamedTuple):
    """Rows of a chunk that are due (N); one of several times is there as often."""

    row_N: Int64Array
    due_ms_N: Int64Array
    grade_N: Int64Array


class HeldChunk:
    """Columns of impressions of which some are not emitted yet, or may be due once more."""

    def __init__(self, columns: Columns, left: Int64Array, look: Look, held: HeldBytes, first_number: int = 0) -> None:
        """`left`: the rows that are to be joined. `held`: where the columns are kept, and counted.

        `first_number`: of the first row among all impressions of its look.
        """
        self.look, self.left, self.first_number, self._held = look, left, first_number, held
        self.early_ms: dict[int, int] = {}  # row -> its release, of those that are released before their windows end
        self.is_waiting_N = np.zeros(len(columns), np.bool_)  # those that were emitted, and wait for a late event
        self._num_waiting, self._first_waiting_ms = 0, MAX_INT  # the oldest of them
        self.late_ms: set[tuple[int, int]] = set()  # (row, ms) of those that have one; it need not be the first one
        no_strings = IdStrings(np.zeros(0, np.uint16), NO_ROWS, [])
        self.columns = replace(columns, raw=None, dead_letters=(), id_strings=no_strings)
        arrays = columns_arrays(self.columns)
        shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        num_bytes = num_bytes_of(shapes)
        if held.fits_in_memory(num_bytes) or not held.fits(num_bytes):
            self._block = held.count(num_bytes)
        else:
            self._block = held.allocate(shapes)
            for name, array in arrays.items():
                self._block.arrays[name][:] = array
            self.columns = with_arrays(self.columns, self._block.arrays)
        self._row_numbers = held.count(left.nbytes + self.is_waiting_N.nbytes)
        self._first_end_ms = int(self._end_ms(left).min(initial=MAX_INT))

    @property
    def num(self) -> int:
        """How many impressions of it are held."""
        return len(self.left) + self._num_waiting

    def _due_ms(self, rows: Int64Array) -> Int64Array:
        """When these rows are released first."""
        due_ms = self._end_ms(rows)
        if self.early_ms:
            early_ms = np.array([self.early_ms.get(row, MAX_INT) for row in rows.tolist()], np.int64)
            due_ms = np.minimum(due_ms, early_ms)
        return due_ms

    def due_before(self, ms: int) -> DueRows:
        """The rows that are released before this time."""
        rows = self.left[self._end_ms(self.left) < ms] if self._first_end_ms < ms else NO_ROWS
        early = [row for row, due_ms in self.early_ms.items() if due_ms < ms]
        rows = np.union1d(rows, np.array(early, np.int64)) if early else rows
        due = DueRows(rows, self._due_ms(rows), np.full(len(rows), self.look.grade))
        late = np.array([place for place in self.late_ms if place[1] < ms], np.int64).reshape(-1, 2)
        return DueRows(*map(np.concatenate, zip(due, (*late.T, np.full(len(late), LATE)), strict=True)))

    def may_be_due(self, ms: int) -> bool:
        """False if surely no row is released before this time."""
        return self._first_end_ms < ms or bool(self.early_ms or self.late_ms)

    def release_at(self, row: int, due_ms: int) -> None:
        """Release a row at this time, if that is before the end of its window and it is not emitted yet."""
        if holds(self.left, row):
            self.early_ms[row] = min(due_ms, self.early_ms.get(row, MAX_INT))

    def note_late(self, row: int, ms: int) -> None:
        """Release a row once more at this time, when an event came after its window, unless it is a duplicate."""
        if self.is_waiting_N[row] or holds(self.left, row):
            self.late_ms.add((row, ms))

    def remove(self, passed: DueRows, is_duplicate_N: BoolArray, *, holds_late: bool) -> None:
        """Drop what was emitted; with `holds_late` an impression that is no duplicate waits for a late event."""
        is_first_N = passed.grade_N != LATE
        rows = passed.row_N[is_first_N]
        self.left = np.setdiff1d(self.left, rows, assume_unique=True)
        self._first_end_ms = int(self._end_ms(self.left).min(initial=MAX_INT))
        if self.early_ms:
            for row in rows.tolist():
                self.early_ms.pop(row, None)
        if holds_late:
            self.is_waiting_N[passed.row_N[is_first_N & ~is_duplicate_N]] = True
            self._note_waiting()
            self.late_ms.difference_update(zip(passed.row_N.tolist(), passed.due_ms_N.tolist(), strict=True))
            dropped = set(passed.row_N[is_duplicate_N].tolist())
            self.late_ms = {(row, ms) for row, ms in self.late_ms if row not in dropped} if dropped else self.late_ms

    def forget(self, shown_ms: int) -> None:
        """Let impressions of before this time wait for no event any more."""
        if self._first_waiting_ms < shown_ms:
            self.is_waiting_N &= self.columns.event_ms_N >= shown_ms
            self._note_waiting()

    def take_over(self, chunks: Sequence["HeldChunk"]) -> None:
        """Note what is known of the rows of these chunks, whose columns follow one another in this one."""
        for chunk in chunks:
            start = chunk.first_number - self.first_number
            self.early_ms.update({row + start: ms for row, ms in chunk.early_ms.items()})
            self.late_ms.update((row + start, ms) for row, ms in chunk.late_ms)
            self.is_waiting_N[start : start + len(chunk.columns)] = chunk.is_waiting_N
        self._note_waiting()

    def close(self) -> None:
        """Give back what the columns take."""
        self._held.free(self._block)
        self._held.free(self._row_numbers)

    def _note_waiting(self) -> None:
        self._num_waiting = int(np.count_nonzero(self.is_waiting_N))
        self._first_waiting_ms = int(self.columns.event_ms_N.min(where=self.is_waiting_N, initial=MAX_INT))

    def _end_ms(self, rows: Int64Array) -> Int64Array:
        return self.columns.event_ms_N[rows] + self.look.after_ms


class HeldImpressions:
    """The impressions that a look is not due for yet, in the order of their arrival.

    Released at the ends of their windows; or, if `is_early`, at their first event where that is sooner. With
    `late_until_ms` once more at each event that comes so long after them, and after their windows.
    """

    def __init__(
        self, look: Look, early_ms: int, held: HeldBytes, *, is_early: bool = False, late_until_ms: int = 0
    ) -> None:
        """`early_ms`: how much older than its impression an event may seem. `late_until_ms`: 0: nothing is late."""
        self.look, self._early_ms, self._held, self._late_until_ms = look, early_ms, held, late_until_ms
        self.chunks: list[HeldChunk] = []
        self._num_added = 0
        self._is_early = is_early
        self.index = ImpressionIndex(held) if is_early or late_until_ms else None

    @property
    def num(self) -> int:
        """How many there are."""
        return sum(chunk.num for chunk in self.chunks)

    @property
    def horizon_ms(self) -> int:
        """How long after it was shown an impression may be held."""
        return max(self.look.after_ms, self._late_until_ms)

    def add(self, columns: Columns, rows: Int64Array, found: Sequence[Matches] = ()) -> None:
        """Add these rows. `found`: the events of each that were read before it, for each label that releases by them.

        The events of an impression that is released early, or until when they count, of one that is held for late ones.
        """
        chunk = HeldChunk(columns, rows, self.look, self._held, self._num_added)
        self.chunks.append(chunk)
        self._num_added += len(columns)
        if self.index is not None:
            assert columns.key_hash_N is not None
            self.index.append(columns.key_hash_N[rows], columns.event_ms_N[rows], chunk.first_number + rows)
        shown = columns.event_ms_N[rows]
        for events in found:
            first_ms = events.first_ms_N
            if self._is_early:
                for n in np.flatnonzero(events.count_N).tolist():
                    chunk.release_at(int(rows[n]), max(int(first_ms[n]), int(shown[n])))
            else:
                for n in np.flatnonzero((events.count_N > 0) & (first_ms > shown + self.look.after_ms)).tolist():
                    chunk.note_late(int(rows[n]), int(first_ms[n]))
        self._merge()

    def note_events(self, key_hash_N: UInt64Array, event_ms_N: Int64Array) -> None:
        """Release the impressions of these events at their time, if they are released early."""
        if self._is_early:
            for chunk, row, ms in self._find(key_hash_N, event_ms_N, self.look.after_ms, -self._early_ms):
                chunk.release_at(row, max(ms, int(chunk.columns.event_ms_N[row])))

    def note_late_events(self, key_hash_N: UInt64Array, event_ms_N: Int64Array, until_ms: int) -> None:
        """Release the impressions of these events once more at their time, if that is after the window until then."""
        for chunk, row, ms in self._find(key_hash_N, event_ms_N, until_ms, self.look.after_ms + 1):
            chunk.note_late(row, ms)

    def due_before(self, ms: int) -> list[tuple[HeldChunk, DueRows]]:
        """The rows that are released before this time."""
        found = [(chunk, chunk.due_before(ms)) for chunk in self.chunks if chunk.may_be_due(ms)]
        return [(chunk, due) for chunk, due in found if len(due.row_N)]

    def forget(self, released_ms: int) -> None:
        """Drop what was emitted, and waits for no event."""
        for chunk in self.chunks:
            chunk.forget(released_ms - self.horizon_ms)
            if chunk.num == 0:
                chunk.close()
        self.chunks = [chunk for chunk in self.chunks if chunk.num > 0]
        if self.index is not None:
            self.index.forget(released_ms - self.horizon_ms)

    def has_room(self, num: int) -> bool:
        """True if so many more can be found by their events."""
        return self.index is None or self.index.has_room(num)

    def close(self) -> None:
        """Give back everything."""
        for chunk in self.chunks:
            chunk.close()
        self.chunks = []
        if self.index is not None:
            self.index.close()

    def _find(
        self, key_hash_N: UInt64Array, event_ms_N: Int64Array, most_ms: int, least_ms: int
    ) -> Iterator[tuple[HeldChunk, int, int]]:
        """The impressions of events that came so long after them, with bounds: the chunk, the row, the event's time."""
        assert self.index is not None
        at_P, number_P = self.index.find(key_hash_N, event_ms_N - most_ms, event_ms_N - least_ms)
        starts = [chunk.first_number for chunk in self.chunks] if len(at_P) else []
        for at, number in zip(at_P.tolist(), number_P.tolist(), strict=True):
            place = bisect.bisect_right(starts, number) - 1
            if place >= 0 and (row := number - starts[place]) < len(self.chunks[place].columns):
                yield self.chunks[place], row, int(event_ms_N[at])

    def _merge(self) -> None:
        """Make one chunk of the newest small ones: many impressions that wait for long are few chunks."""
        start, num_rows = len(self.chunks), 0
        while start > 0 and len(self.chunks[start - 1].columns) < MERGED_ROWS:
            number = self.chunks[start].first_number if start < len(self.chunks) else self._num_added
            before = self.chunks[start - 1]
            if before.first_number + len(before.columns) != number:
                break  # what was between is gone
            start, num_rows = start - 1, num_rows + len(before.columns)
        small = self.chunks[start:]
        if len(small) < MERGED_CHUNKS and (len(small) < 2 or num_rows < MERGED_ROWS):
            return
        columns = [chunk.columns for chunk in small]
        key_hash_N = np.concatenate([part.key_hash_N for part in columns if part.key_hash_N is not None])
        merged = replace(Columns.concatenate(columns), key_hash_N=key_hash_N)
        first = small[0].first_number
        offsets = [chunk.first_number - first for chunk in small]
        left = np.concatenate([chunk.left + offset for chunk, offset in zip(small, offsets, strict=True)])
        for chunk in small:
            chunk.close()
        chunk = HeldChunk(merged, left, self.look, self._held, first)
        chunk.take_over(small)
        self.chunks[start:] = [chunk]


def places_of(parts: Sequence[tuple[HeldChunk, DueRows]]) -> tuple[SamplePlaces, Int64Array, Int64Array]:
    """The columns of SamplePlace of these rows (U), the number of each one's part, and its row there."""
    found = [SamplePlaces(NO_ROWS, np.empty(0, np.uint64), NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS)]
    part_U, row_U = [NO_ROWS], [NO_ROWS]
    for number, (chunk, due) in enumerate(parts):
        columns, rows = chunk.columns, due.row_N
        numbers = np.array([partition.number for partition in columns.partitions])
        assert columns.key_hash_N is not None
        found.append(
            SamplePlaces(
                due.due_ms_N,
                columns.key_hash_N[rows],
                columns.event_ms_N[rows],
                numbers[columns.partition_N[rows]],
                columns.offset_N[rows],
                np.full(len(rows), chunk.look.after_ms),
                due.grade_N,
            )
        )
        part_U.append(np.full(len(rows), number))
        row_U.append(rows)
    places_U = SamplePlaces(*map(np.concatenate, zip(*(part.columns for part in found), strict=True)))
    return places_U, np.concatenate(part_U), np.concatenate(row_U)


def holds(rows: Int64Array, row: int) -> bool:
    """True if the row is one of these, which are sorted."""
    at = int(np.searchsorted(rows, row))
    return at < len(rows) and bool(rows[at] == row)


def columns_arrays(columns: Columns) -> dict[str, npt.NDArray[Any]]:
    """The arrays of columns without their records, by name."""
    features = columns.features
    arrays: dict[str, npt.NDArray[Any]] = {}
    for n, ragged in enumerate(features.lists):
        arrays[f"ids_{n}"], arrays[f"offsets_{n}"] = ragged.ids_M, ragged.offsets
        if ragged.weights_M is not None:
            arrays[f"weights_{n}"] = ragged.weights_M
    assert columns.key_hash_N is not None
    optional = {"served": columns.served_N, "request": columns.request_N, "group": columns.group_N}
    optional |= {"signals": columns.signals_N, "numbers": columns.numbers_NK, "bias": columns.features.bias_NB}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    return arrays | {
        "categorical": features.categorical_NC,
        "dense": features.dense_NF,
        "labels": columns.labels_NL,
        "weights": columns.weights_N,
        "event_ms": columns.event_ms_N,
        "record_ms": columns.record_ms_N,
        "partition": columns.partition_N,
        "offset": columns.offset_N,
        "key_hash": columns.key_hash_N,
    }


def with_arrays(columns: Columns, arrays: dict[str, npt.NDArray[Any]]) -> Columns:
    """The same columns in other arrays."""
    lists = tuple(
        Ragged(arrays[f"ids_{n}"], arrays[f"offsets_{n}"], arrays.get(f"weights_{n}"))
        for n in range(len(columns.features.lists))
    )
    return replace(
        columns,
        features=Features(arrays["categorical"], lists, arrays["dense"], arrays.get("bias")),
        labels_NL=arrays["labels"],
        weights_N=arrays["weights"],
        event_ms_N=arrays["event_ms"],
        record_ms_N=arrays["record_ms"],
        partition_N=arrays["partition"],
        offset_N=arrays["offset"],
        key_hash_N=arrays["key_hash"],
        served_N=arrays.get("served"),
        request_N=arrays.get("request"),
        group_N=arrays.get("group"),
        signals_N=arrays.get("signals"),
        numbers_NK=arrays.get("numbers"),
    )
