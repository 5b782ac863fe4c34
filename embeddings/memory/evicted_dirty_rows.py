"""Touched rows that left memory before their version was cut, and marks of keys forgotten since the last cut."""

# N rows
from collections.abc import Callable

import numpy as np
from springtide_client.keys import mix_keys

from embeddings.rows import BoolArray, Int64Array, Rows, TableDelta, UInt16Array


class EvictedDirtyRows:
    """Keeps the newest copy of a key: a mark replaces its row, a row replaces its mark."""

    def __init__(self, capacity: int, dim: int, state_width: int) -> None:
        self.capacity = capacity
        self.dim, self.state_width = dim, state_width
        self.clear()

    def __len__(self) -> int:
        return self._num_rows

    def clear(self) -> None:
        self._parts: list[tuple[Rows, bool]] = []  # oldest first; True: marks
        self._num_rows = 0

    def has_room_for(self, num_rows: int) -> bool:
        """Whether this many more rows fit; an empty buffer takes any number."""
        return self._num_rows == 0 or self._num_rows + num_rows <= self.capacity

    def add(self, rows: Rows) -> None:
        if len(rows):
            self._parts.append((rows, False))
            self._num_rows += len(rows)

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            nothing = Rows.empty(len(ids_N), self.dim, self.state_width)
            rows = Rows(features_N, ids_N, nothing.values, nothing.states, nothing.counts, nothing.last_seen)
            self._parts.append((rows, True))
            self._num_rows += len(rows)

    def num_bytes(self) -> int:
        return sum(column.nbytes for rows, _ in self._parts for column in rows.columns())

    def drain(self, resident: Rows, is_resident: Callable[[UInt16Array, Int64Array], BoolArray]) -> TableDelta:
        """The resident rows, and the newest copies of all keys that are not among them; the buffer is empty then."""
        if not self._parts:
            return TableDelta.of(resident)
        newest_first = self._parts[::-1]
        rows = Rows.concatenate([rows for rows, _ in newest_first])
        is_mark = np.concatenate([np.full(len(rows), mark) for rows, mark in newest_first])
        self.clear()
        newest = _first_of_each_key(rows.features, rows.ids)
        newest = newest[~is_resident(rows.features[newest], rows.ids[newest])]
        marks = newest[is_mark[newest]]
        moved = Rows.concatenate([resident, rows.take(newest[~is_mark[newest]])])
        return TableDelta(
            moved.features,
            moved.ids,
            moved.values,
            moved.states,
            moved.counts,
            moved.last_seen,
            rows.features[marks],
            rows.ids[marks],
        )


def _first_of_each_key(features_N: UInt16Array, ids_N: Int64Array) -> Int64Array:
    """The positions where a key stands for the first time, ascending."""
    order = np.lexsort((np.arange(len(ids_N)), features_N, mix_keys(features_N, ids_N)))
    features, ids = features_N[order], ids_N[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (features[1:] != features[:-1]) | (ids[1:] != ids[:-1])
    return np.sort(order[first])
