"""Touched rows that left memory before their version was cut, and marks of keys forgotten since the last cut."""

# N rows
import numpy as np
from springtide_client.keys import mix_keys

from embeddings.rows import Int64Array, Rows, Touched, UInt16Array


class SideBuffer:
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

    def can_take(self, num_rows: int) -> bool:
        """Whether this many more rows fit; an empty buffer takes any number."""
        return self._num_rows == 0 or self._num_rows + num_rows <= self.capacity

    def add(self, rows: Rows) -> None:
        if len(rows):
            self._parts.append((rows, False))
            self._num_rows += len(rows)

    def add_marks(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            nothing = Rows.empty(len(ids_N), self.dim, self.state_width)
            rows = Rows(features_N, ids_N, nothing.values, nothing.states, nothing.counts, nothing.last_seen)
            self._parts.append((rows, True))
            self._num_rows += len(rows)

    def num_bytes(self) -> int:
        return sum(column.nbytes for rows, _ in self._parts for column in rows.columns())

    def drain(self, resident: Rows) -> Touched:
        """The resident rows and the newest copies of all other keys, each key once; the buffer is empty then."""
        rows, is_mark = resident, np.zeros(len(resident), np.bool_)
        if self._parts:
            parts = [resident, *(rows for rows, _ in reversed(self._parts))]
            kinds = [is_mark, *(np.full(len(rows), mark) for rows, mark in reversed(self._parts))]
            newest = _first_of_each_key(
                np.concatenate([p.features for p in parts]), np.concatenate([p.ids for p in parts])
            )
            rows, is_mark = Rows.concatenate(parts).take(newest), np.concatenate(kinds)[newest]
        self.clear()
        marks = rows.take(is_mark)
        if len(marks):
            rows = rows.take(~is_mark)
        return Touched(
            rows.features, rows.ids, rows.values, rows.states, rows.counts, rows.last_seen, marks.features, marks.ids
        )


def _first_of_each_key(features_N: UInt16Array, ids_N: Int64Array) -> Int64Array:
    """The positions where a key stands for the first time, ascending."""
    order = np.lexsort((np.arange(len(ids_N)), features_N, mix_keys(features_N, ids_N)))
    features, ids = features_N[order], ids_N[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (features[1:] != features[:-1]) | (ids[1:] != ids[:-1])
    return np.sort(order[first])
