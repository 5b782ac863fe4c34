"""The versions behind one up to another: what they do to rows, a part of the key space at a time, so memory is bounded.

Keys are hashed evenly over the parts, so that parts of equal width hold about as many rows each.
"""

# n rows
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from springtide_client.errors import LogError
from springtide_client.format.records import Record, version_name
from springtide_client.format.tensors import Arrays
from springtide_client.rows.layers import RowLayer, flatten_layers, push_layer, record_layer

from app.version_log.read.index import IndexEntry, LogIndex

RANGE_BYTES = 256 << 20  # of records whose rows are in memory at a time; two to three times as much is taken


class KeyRange(NamedTuple):
    """A range of mixed keys, both ends in it."""

    low: int
    high: int

    def select(self, layer: RowLayer) -> RowLayer:
        """The layer's rows in this part, nothing copied."""
        start = int(layer.mixed.searchsorted(np.uint64(self.low)))
        end = int(layer.mixed.searchsorted(np.uint64(self.high), "right"))
        return layer.take(slice(start, end))


def split_keys(num_bytes: int, range_bytes: int = RANGE_BYTES) -> list[KeyRange]:
    """The key space in as many parts as such records ask for."""
    num_parts = max(1, -(-num_bytes // range_bytes))
    bounds = [(part << 64) // num_parts for part in range(num_parts + 1)]
    return [KeyRange(low, high - 1) for low, high in pairwise(bounds)]


class VersionRange:
    """The versions after `after` up to `last`, both in the index."""

    def __init__(self, index: LogIndex, after: int, last: int) -> None:
        self.after, self.last = after, last
        self._directory = index.directory
        self._tips = index.tip(after), index.tip(last)
        self.entries = index.entries_between(after, last)
        self.num_bytes = sum(entry.num_bytes for entry in self.entries)

    def records(self) -> Iterator[Record]:
        """Each of them, read as every follower reads; LogError where they do not lead from one end to the other."""
        tip, last = self._tips
        reason = ""
        if tip != last:
            records = self._directory.records(tip)
            while tip.number < last.number:
                try:
                    record = next(records, None)
                except LogError as error:
                    record, reason = None, f" ({error})"
                if record is None:
                    break
                tip = record.tip
                yield record
        if tip != last:
            raise LogError(
                f"the log cannot be read from {version_name(self.after)} to {version_name(self.last)}, only to "
                f"{tip}{reason}: `springtide versions verify` tells more; while a trainer starts, try again"
            )

    def changes(
        self, part: KeyRange, dim: int, *, state_width: int | None = None, only: RowLayer | None = None
    ) -> RowLayer:
        """What all of them together do to a part's rows (of `only` its keys): rows, and marks of forgotten ones."""
        layers: tuple[RowLayer, ...] = ()
        for record in self.records():
            layer = part.select(record_layer(record.tensors(), dim, state_width))
            if only is not None:
                layer = layer.take(np.flatnonzero(only.find_mixed(layer.mixed, layer.feature) >= 0))
            layers = push_layer(layers, _copied(layer))
        return flatten_layers(layers, dim, state_width)

    def keys(self, part: KeyRange) -> RowLayer:
        """`changes` without the vectors, in little memory."""
        layers: tuple[RowLayer, ...] = ()
        for record in self.records():
            layers = push_layer(layers, _copied(part.select(record_layer(without_vectors(record.tensors()), 0))))
        return flatten_layers(layers, 0)

    def forgotten(self, part: KeyRange) -> RowLayer:
        """The keys that any of them forgets, also those that came back."""
        layers: tuple[RowLayer, ...] = ()
        for record in self.records():
            tensors = record.tensors()
            marks = {name: array for name, array in tensors.items() if name.startswith("forgotten.")}
            layers = push_layer(layers, _copied(part.select(record_layer(marks, 0))))
        return flatten_layers(layers, 0)

    def newest_arrays(self, prefix: str) -> Arrays:
        """Of the arrays whose names begin so, each as the last version that has it tells it."""
        places: dict[str, IndexEntry] = {}
        for entry in self.entries:
            head = entry.read_head()
            if head.meta.restores:
                places = {}  # it tells all of them that there are
            places |= {name: entry for name in head.shapes if name.startswith(prefix)}
        arrays: Arrays = {}
        for entry in {place.number: place for place in places.values()}.values():
            tensors = entry.read().tensors()
            arrays |= {name: np.array(tensors[name]) for name, place in places.items() if place is entry}
        return arrays

    @property
    def restores(self) -> bool:
        """Whether one of them restores an older version, in which nothing of `dense.*` and `state.*` is left out."""
        return any(entry.read_head().meta.restores for entry in self.entries)

    def tensors_with(self, name: str) -> Iterator[Arrays]:
        """The arrays of the versions that have one of that name."""
        for entry in self.entries:
            if name in entry.read_head().shapes:
                yield entry.read().tensors()


def without_vectors(tensors: Arrays) -> Arrays:
    """A record's tensors, its rows of width 0."""
    if "rows.value" not in tensors:
        return tensors
    return {**tensors, "rows.value": tensors["rows.value"][:, :0]}


def _copied(layer: RowLayer) -> RowLayer:
    """A part keeps no memory of the whole."""
    return layer if layer.mixed.base is None else layer.take(np.arange(len(layer)))
