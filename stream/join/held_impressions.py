"""Impressions that wait for the end of their windows: columns as they came, in memory or in a scratch file."""

# N rows, P pairs of an event and an impression
import bisect
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Columns
from springtide.stream.join.config import Look
from springtide.stream.join.event_index import Matches
from springtide.stream.join.held_bytes import HeldBytes, num_bytes_of
from springtide.stream.join.impression_index import ImpressionIndex
from springtide.stream.join.key_index import UInt64Array
from springtide.stream.join_state import MAX_INT
from springtide_client.array_types import Int64Array
from springtide_client.features import Features, IdStrings, Ragged

NO_ROWS = np.empty(0, np.int64)


MERGED_ROWS, MERGED_CHUNKS = 1 << 15, 64  # so many rows or chunks at most become one chunk


class HeldChunk:
    """Columns of impressions of which some are not emitted yet."""

    def __init__(self, columns: Columns, left: Int64Array, look: Look, held: HeldBytes, first_number: int = 0) -> None:
        """`left`: the rows that are to be joined. `held`: where the columns are kept, and counted.

        `first_number`: of the first row among all impressions of its look.
        """
        self.look, self.left, self.first_number, self._held = look, left, first_number, held
        self.early_ms: dict[int, int] = {}  # row -> its release, of those that are released before their windows end
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
        self._row_numbers = held.count(left.nbytes)
        self._first_end_ms = int(self._end_ms(left).min(initial=MAX_INT))

    def due_ms(self, rows: Int64Array) -> Int64Array:
        """When these rows are released."""
        due_ms = self._end_ms(rows)
        if self.early_ms:
            early_ms = np.array([self.early_ms.get(row, MAX_INT) for row in rows.tolist()], np.int64)
            due_ms = np.minimum(due_ms, early_ms)
        return due_ms

    def due_before(self, ms: int) -> Int64Array:
        """The rows that are released before this time."""
        rows = self.left[self._end_ms(self.left) < ms] if self._first_end_ms < ms else NO_ROWS
        early = [row for row, due_ms in self.early_ms.items() if due_ms < ms]
        return np.union1d(rows, np.array(early, np.int64)) if early else rows

    def release_at(self, row: int, due_ms: int) -> None:
        """Release a row at this time, if that is before the end of its window and it is not emitted yet."""
        at = int(np.searchsorted(self.left, row))
        if at < len(self.left) and self.left[at] == row:
            self.early_ms[row] = min(due_ms, self.early_ms.get(row, MAX_INT))

    def remove(self, rows: Int64Array) -> None:
        """Drop rows that were emitted."""
        self.left = np.setdiff1d(self.left, rows, assume_unique=True)
        self._first_end_ms = int(self._end_ms(self.left).min(initial=MAX_INT))
        if self.early_ms:
            for row in rows.tolist():
                self.early_ms.pop(row, None)

    def close(self) -> None:
        """Give back what the columns take."""
        self._held.free(self._block)
        self._held.free(self._row_numbers)

    def _end_ms(self, rows: Int64Array) -> Int64Array:
        return self.columns.event_ms_N[rows] + self.look.after_ms


class HeldImpressions:
    """The impressions that a look is not due for yet, in the order of their arrival.

    Released at the ends of their windows; or, if `is_early`, at their first event where that is sooner.
    """

    def __init__(self, look: Look, early_ms: int, held: HeldBytes, *, is_early: bool) -> None:
        """`early_ms`: how much older than its impression an event may seem."""
        self.look, self._early_ms, self._held = look, early_ms, held
        self.chunks: list[HeldChunk] = []
        self._num_added = 0
        self.index = ImpressionIndex(held) if is_early else None

    @property
    def num(self) -> int:
        """How many there are."""
        return sum(len(chunk.left) for chunk in self.chunks)

    def add(self, columns: Columns, rows: Int64Array, found: Matches | None = None) -> None:
        """Add these rows. `found`: the events of each, if they are released early: those that were read before it."""
        chunk = HeldChunk(columns, rows, self.look, self._held, self._num_added)
        self.chunks.append(chunk)
        self._num_added += len(columns)
        if self.index is not None and found is not None:
            assert columns.key_hash_N is not None
            self.index.append(columns.key_hash_N[rows], columns.event_ms_N[rows], chunk.first_number + rows)
            due_ms = np.maximum(found.first_ms_N, columns.event_ms_N[rows])
            for n in np.flatnonzero(found.count_N).tolist():
                chunk.release_at(int(rows[n]), int(due_ms[n]))
        self._merge()

    def note_events(self, key_hash_N: UInt64Array, event_ms_N: Int64Array) -> None:
        """Release the impressions of these events at their time, if they are released early."""
        if self.index is None:
            return
        at_P, number_P = self.index.find(key_hash_N, event_ms_N - self.look.after_ms, event_ms_N + self._early_ms)
        starts = [chunk.first_number for chunk in self.chunks]
        for at, number in zip(at_P.tolist(), number_P.tolist(), strict=True):
            place = bisect.bisect_right(starts, number) - 1
            if place >= 0 and (row := number - starts[place]) < len(self.chunks[place].columns):
                chunk = self.chunks[place]
                chunk.release_at(row, max(int(event_ms_N[at]), int(chunk.columns.event_ms_N[row])))

    def due_before(self, ms: int) -> list[tuple[HeldChunk, Int64Array]]:
        """The rows that are released before this time."""
        return [(chunk, rows) for chunk in self.chunks if len(rows := chunk.due_before(ms))]

    def forget(self, released_ms: int) -> None:
        """Drop what was emitted."""
        for chunk in self.chunks:
            if not len(chunk.left):
                chunk.close()
        self.chunks = [chunk for chunk in self.chunks if len(chunk.left)]
        if self.index is not None:
            self.index.forget(released_ms - self.look.after_ms)

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
        early_ms = {
            row + offset: ms for chunk, offset in zip(small, offsets, strict=True) for row, ms in chunk.early_ms.items()
        }
        for chunk in small:
            chunk.close()
        chunk = HeldChunk(merged, left, self.look, self._held, first)
        chunk.early_ms = early_ms
        self.chunks[start:] = [chunk]


def columns_arrays(columns: Columns) -> dict[str, npt.NDArray[Any]]:
    """The arrays of columns without their records, by name."""
    features = columns.features
    arrays: dict[str, npt.NDArray[Any]] = {}
    for n, ragged in enumerate(features.lists):
        arrays[f"ids_{n}"], arrays[f"offsets_{n}"] = ragged.ids_M, ragged.offsets
    assert columns.key_hash_N is not None
    if columns.served_N is not None:
        arrays["served"] = columns.served_N
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
    lists = tuple(Ragged(arrays[f"ids_{n}"], arrays[f"offsets_{n}"]) for n in range(len(columns.features.lists)))
    return replace(
        columns,
        features=Features(arrays["categorical"], lists, arrays["dense"]),
        labels_NL=arrays["labels"],
        weights_N=arrays["weights"],
        event_ms_N=arrays["event_ms"],
        record_ms_N=arrays["record_ms"],
        partition_N=arrays["partition"],
        offset_N=arrays["offset"],
        key_hash_N=arrays["key_hash"],
        served_N=arrays.get("served"),
    )
