"""The versions between two points of the log: what they change in rows, one range of keys at a time to bound memory.

Mixed keys are hashes, so key ranges of equal width hold about as many rows each.
"""

# n rows
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from springtide.app.version_log.read.exact_state import fold_net
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.segments import IndexEntry
from springtide.app.version_log.tables import LogTable
from springtide_client.errors import LogError
from springtide_client.format.records import Record, version_name
from springtide_client.format.tensors import Arrays
from springtide_client.rows.layers import flatten_layers, push_layer, record_layer
from springtide_client.rows.row_layer import RowLayer

RANGE_BYTES = 256 << 20  # of records whose rows are in memory at a time; peak memory is two to three times as much


class KeyRange(NamedTuple):
    """A range of mixed keys; both ends belong to it."""

    low: int
    high: int

    def select(self, layer: RowLayer) -> RowLayer:
        """Return the layer's rows in this range as views, without copying."""
        start = int(layer.mixed.searchsorted(np.uint64(self.low)))
        end = int(layer.mixed.searchsorted(np.uint64(self.high), "right"))
        return layer.take(slice(start, end))


def split_keys(num_bytes: int, range_bytes: int = RANGE_BYTES) -> list[KeyRange]:
    """Split the key space into equal ranges, as many as records of `num_bytes` need."""
    num_ranges = max(1, -(-num_bytes // range_bytes))
    bounds = [(count << 64) // num_ranges for count in range(num_ranges + 1)]
    return [KeyRange(low, high - 1) for low, high in pairwise(bounds)]


class VersionRange:
    """The versions after `after` up to and including `last`; both are in the index."""

    def __init__(self, index: LogIndex, after: int, last: int) -> None:
        self.after, self.last = after, last
        self._directory = index.directory
        self._tips = index.tip(after), index.tip(last)
        self.entries = index.entries_between(after, last)
        self.num_bytes = sum(entry.num_bytes for entry in self.entries)

    def records(self) -> Iterator[Record]:
        """Yield each record, read as followers read; LogError if they do not connect one end to the other."""
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
                f"the log cannot be read from {version_name(self.after)} to {version_name(self.last)}, only up to "
                f"{tip}{reason}: `springtide versions verify` says why; if a trainer is starting, try again"
            )

    def changes(
        self, key_range: KeyRange, table: LogTable, *, with_states: bool = False, only: RowLayer | None = None
    ) -> RowLayer:
        """Return what the versions together do to a range of a table's keys: rows, and tombstones of deleted ones.

        `only`: restrict the result to the keys of this layer.
        """
        layers: tuple[RowLayer, ...] = ()
        for record in self.records():
            layer = key_range.select(table.record_layer(record.tensors(), with_states=with_states))
            if only is not None:
                layer = layer.take(np.flatnonzero(only.find_mixed(layer.mixed, layer.feature) >= 0))
            layers = push_layer(layers, _copied(layer))
        return flatten_layers(layers, table.spec.dim, table.spec.state_width if with_states else None)

    def keys(self, key_range: KeyRange, table: LogTable) -> RowLayer:
        """Return `changes` with values of width 0, which takes little memory."""
        layers: tuple[RowLayer, ...] = ()
        for record in self.records():
            layer = table.record_layer(record.tensors(), with_values=False)
            layers = push_layer(layers, _copied(key_range.select(layer)))
        return flatten_layers(layers, 0)

    def tombstones(self, key_range: KeyRange, table: LogTable) -> RowLayer:
        """Return the keys that any of the versions deletes, including those created again later."""
        layers: tuple[RowLayer, ...] = ()
        for record in self.records():
            tensors = table.tensors(record.tensors())
            deleted = {name: array for name, array in tensors.items() if name.startswith("forgotten.")}
            layers = push_layer(layers, _copied(key_range.select(record_layer(deleted, 0))))
        return flatten_layers(layers, 0)

    def newest_net(self, older: Arrays, prefix: str = "") -> Arrays:
        """Return the net over `older`, of what begins with `prefix`, each array from the last version that has it."""
        sources: dict[str, IndexEntry | None] = dict.fromkeys(older)
        for entry in self.entries:
            head = entry.read_head()
            sources = fold_net(sources, dict.fromkeys(head.shapes, entry), is_whole=bool(head.meta.restores))
        sources = {name: source for name, source in sources.items() if name.startswith(prefix)}
        net = {name: older[name] for name, source in sources.items() if source is None}
        for entry in {source.number: source for source in sources.values() if source is not None}.values():
            tensors = entry.read().tensors()
            net |= {name: np.array(tensors[name]) for name, source in sources.items() if source is entry}
        return net

    def tensors_with(self, name: str) -> Iterator[Arrays]:
        """Yield the tensors of each version that has one of this name."""
        for entry in self.entries:
            if name in entry.read_head().shapes:
                yield entry.read().tensors()


def _copied(layer: RowLayer) -> RowLayer:
    """Copy a view, so that it does not keep the whole record in memory."""
    return layer if layer.mixed.base is None else layer.take(np.arange(len(layer)))
