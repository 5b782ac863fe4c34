"""Dirty rows evicted before their version was written, and tombstones of keys forgotten since the last version."""

# N rows
from collections.abc import Callable

import numpy as np

from springtide.embeddings.rows import BoolArray, Int64Array, Rows, TableDelta, UInt16Array
from springtide_client.keys import mix_keys


class EvictedDirtyRows:
    """A buffer that keeps the newest copy of a key: a tombstone replaces its row, a row replaces its tombstone."""

    def __init__(self, capacity: int, dim: int, state_width: int) -> None:
        self.capacity = capacity
        self.dim, self.state_width = dim, state_width
        self.clear()

    def __len__(self) -> int:
        return self._num_rows

    def clear(self) -> None:
        self._parts: list[tuple[Rows, bool]] = []  # oldest first; True: tombstones
        self._num_rows = 0

    def has_room_for(self, num_rows: int) -> bool:
        """Return True if this many more rows fit; into an empty buffer any number fits."""
        return self._num_rows == 0 or self._num_rows + num_rows <= self.capacity

    def add(self, rows: Rows) -> None:
        if len(rows):
            self._parts.append((rows, False))
            self._num_rows += len(rows)

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            self._parts.append((Rows.empty_of(features_N, ids_N, self.dim, self.state_width), True))
            self._num_rows += len(ids_N)

    def num_bytes(self) -> int:
        return sum(column.nbytes for rows, _ in self._parts for column in rows.columns())

    def drain(self, resident: Rows, is_resident: Callable[[UInt16Array, Int64Array], BoolArray]) -> TableDelta:
        """The resident dirty rows, and the newest copy here of every key that is not among them. Empties the buffer."""
        if not self._parts:
            return TableDelta.of(resident)
        newest_first = self._parts[::-1]
        rows = Rows.concatenate([rows for rows, _ in newest_first])
        is_tombstone = np.concatenate([np.full(len(rows), tombstones) for rows, tombstones in newest_first])
        self.clear()
        newest = _first_of_each_key(rows.features, rows.ids)
        newest = newest[~is_resident(rows.features[newest], rows.ids[newest])]
        tombstones = newest[is_tombstone[newest]]
        dirty = Rows.concatenate([resident, rows.take(newest[~is_tombstone[newest]])])
        return TableDelta.of(dirty, rows.features[tombstones], rows.ids[tombstones])


def _first_of_each_key(features_N: UInt16Array, ids_N: Int64Array) -> Int64Array:
    """The positions at which each key occurs for the first time, ascending."""
    order = np.lexsort((np.arange(len(ids_N)), features_N, mix_keys(features_N, ids_N)))
    features, ids = features_N[order], ids_N[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (features[1:] != features[:-1]) | (ids[1:] != ids[:-1])
    return np.sort(order[first])
