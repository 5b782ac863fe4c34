"""The versions between two points of the log, one range of keys at a time to bound memory: changes, and whole images.

Key hashes are uniform, so key ranges of equal width hold about as many rows each.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from springtide.app.version_log.read.exact_state import fold_net
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.index_entry import IndexEntry
from springtide.app.version_log.tables import LogTable, table_holding, tables_of
from springtide_client.array_types import BoolArray
from springtide_client.errors import LogError
from springtide_client.format.records import Record, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from springtide_client.rows.layers import aligned_chunks, flatten_layers, merge_layers, push_layer, record_layer
from springtide_client.rows.row_block import RowBlock

RANGE_BYTES = 256 << 20  # of records whose rows are in memory at a time; peak memory is two to three times as much


class KeyRange(NamedTuple):
    """A range of key hashes; both ends belong to it."""

    low: int
    high: int

    def select(self, layer: RowBlock) -> RowBlock:
        """Return the layer's rows in this range as views, without copying."""
        start = int(layer.key_hash.searchsorted(np.uint64(self.low)))
        end = int(layer.key_hash.searchsorted(np.uint64(self.high), "right"))
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
        self._heads = index.head(after), index.head(last)
        self.entries = index.entries_between(after, last)
        self.num_bytes = sum(entry.num_bytes for entry in self.entries)

    def records(self) -> Iterator[Record]:
        """Yield each record, read as followers read; LogError if they do not connect one end to the other."""
        head, last = self._heads
        reason = ""
        if head != last:
            records = self._directory.records(head)
            while head.number < last.number:
                try:
                    record = next(records, None)
                except LogError as error:
                    record, reason = None, f" ({error})"
                if record is None:
                    break
                head = record.head
                yield record
        if head != last:
            raise LogError(
                f"the log cannot be read from {version_name(self.after)} to {version_name(self.last)}, only up to "
                f"{head}{reason}: `springtide versions verify` says why; if a trainer is starting, try again"
            )

    def changes(
        self, key_range: KeyRange, table: LogTable, *, with_states: bool = False, only: RowBlock | None = None
    ) -> RowBlock:
        """Return what the versions together do to a range of a table's keys: rows, and tombstones of deleted ones.

        `only`: restrict the result to the keys of this layer.
        """

        def layer_of(record: Record) -> RowBlock:
            layer = key_range.select(table.record_layer(record.tensors(), with_states=with_states))
            return layer if only is None else layer.where(only.holds(layer))

        return self._folded(layer_of, table.spec.dim, table.spec.state_width if with_states else 0)

    def keys(self, key_range: KeyRange, table: LogTable) -> RowBlock:
        """Return `changes` with values of width 0, which takes little memory."""
        return self._folded(lambda record: key_range.select(table.record_layer(record.tensors(), with_values=False)))

    def tombstones(self, key_range: KeyRange, table: LogTable) -> RowBlock:
        """Return the keys that any of the versions deletes, including those created again later."""

        def layer_of(record: Record) -> RowBlock:
            tensors = table.tensors(record.tensors())
            deleted = {name: array for name, array in tensors.items() if name.startswith("forgotten.")}
            return key_range.select(record_layer(deleted, 0))

        return self._folded(layer_of)

    def _folded(self, layer_of: Callable[[Record], RowBlock], dim: int = 0, state_width: int = 0) -> RowBlock:
        """Return what the versions' layers say together. Views are copied: they would keep whole records in memory."""
        layers: tuple[RowBlock, ...] = ()
        for record in self.records():
            layer = layer_of(record)
            layers = push_layer(layers, layer if layer.feature.base is None else layer.copied())
        return flatten_layers(layers, dim, state_width)

    def newest_net(self, older: Arrays, prefix: str = "") -> Arrays:
        """Return the net over `older`, of what begins with `prefix`, each array from the last version that has it."""
        sources: dict[str, IndexEntry | None] = dict.fromkeys(older)
        for entry in self.entries:
            summary = entry.read_summary()
            sources = fold_net(sources, dict.fromkeys(summary.shapes, entry), is_whole=bool(summary.meta.restores))
        sources = {name: source for name, source in sources.items() if name.startswith(prefix)}
        net = {name: older[name] for name, source in sources.items() if source is None}
        for entry in {source.number: source for source in sources.values() if source is not None}.values():
            tensors = entry.read().tensors()
            net |= {name: np.array(tensors[name]) for name, source in sources.items() if source is entry}
        return net

    def tensors_with(self, name: str) -> Iterator[Arrays]:
        """Yield the tensors of each version that has one of this name."""
        for entry in self.entries:
            if name in entry.read_summary().shapes:
                yield entry.read().tensors()


class VersionImage:
    """One version: a base, and the versions after it up to that one.

    Its rows can be streamed any number of times; memory is bounded.
    """

    def __init__(
        self, index: LogIndex, version: int, *, base: Base | None = None, range_bytes: int = RANGE_BYTES
    ) -> None:
        """`base`: to begin with, if not the newest. UserError if the log no longer reaches that version."""
        self.version = version
        self.base = index.base_before(version) if base is None else base
        self.versions = VersionRange(index, self.base.head.number, version)
        self.meta: VersionMeta = index.meta(version)
        self.checksum = index.head(version).checksum
        self.schema = self.base.manifest.decode_schema()
        self.tables = tables_of(self.base.manifest)
        self._key_ranges = split_keys(self.versions.num_bytes, range_bytes)

    @property
    def num_bytes(self) -> int:
        """About the bytes of its rows."""
        return self.versions.num_bytes + sum(table.base_layer(self.base).num_bytes for table in self.tables)

    def rows(
        self, feature: int | None = None, *, table: LogTable | None = None, with_values: bool = True
    ) -> Iterator[RowBlock]:
        """Yield the rows, some at a time, of one feature or table if it is given.

        Rows shared by several ids are left out. Those of one table follow the other's, and are as wide as it is.
        """
        tables = self.tables if table is None else (table,)
        for one in tables if feature is None else (table_holding(self.tables, feature),):
            for rows in self._merged_rows(one, self._key_ranges, with_values=with_values):
                wanted = rows.live_mask(self.meta.expiry_cutoffs) & (rows.feature < SHARED_ROW_OFFSET)
                if feature is not None:
                    wanted &= rows.feature == feature
                if wanted.any():
                    yield rows.where(wanted)

    def num_rows(self, table: LogTable) -> int:
        """Return how many live rows a table has, those shared by several ids included."""
        parts = self._merged_rows(table, self._key_ranges, with_values=False)
        return sum(int(np.count_nonzero(rows.live_mask(self.meta.expiry_cutoffs))) for rows in parts)

    def live_rows(self, table: LogTable, key_ranges: Sequence[KeyRange] | None = None) -> Iterator[RowBlock]:
        """Yield the live rows of a table with their optimizer states, in key order; of some ranges of keys only."""
        for rows in self._merged_rows(table, key_ranges or self._key_ranges, with_states=True):
            yield rows.where(rows.live_mask(self.meta.expiry_cutoffs)).without_tombstones()

    def live_layer(self, table: LogTable, key_ranges: Sequence[KeyRange] | None = None) -> RowBlock:
        """Return what `live_rows` yields as one layer."""
        return flatten_layers(self.live_rows(table, key_ranges), table.spec.dim, table.spec.state_width)

    def _merged_rows(
        self, table: LogTable, key_ranges: Sequence[KeyRange], *, with_values: bool = True, with_states: bool = False
    ) -> Iterator[RowBlock]:
        """Yield the rows of a table in key order, the dead ones too."""
        in_base = table.base_layer(self.base) if with_states else table.base_rows(self.base)
        in_base = in_base if with_values else in_base.keys_only()
        for key_range in key_ranges:
            if with_values:
                changes = self.versions.changes(key_range, table, with_states=with_states)
            else:
                changes = self.versions.keys(key_range, table)
            for old, new in aligned_chunks([key_range.select(in_base), changes]):
                yield merge_layers(old, new)

    def table_of(self, feature: int) -> LogTable:
        """Return the table that holds the rows of a feature."""
        return table_holding(self.tables, feature)

    def find(self, feature: int, row_id: int) -> RowBlock | None:
        """Return the live row of a key, with its optimizer state; None if it has none. Reads all versions."""
        table, key = self.table_of(feature), (np.array([feature], np.uint16), np.array([row_id], np.int64))
        changed = self.versions.changes(split_keys(0)[0], table, with_states=True, only=RowBlock.of_keys(*key))
        rows = changed if len(changed) else table.base_layer(self.base)
        place = int(rows.find(*key)[0])
        if place < 0:
            return None
        row = rows.take(np.array([place]))
        return row if row.live_mask(self.meta.expiry_cutoffs)[0] else None

    def dense(self, prefix: str = "") -> Arrays:
        """Return the dense net's parameters and buffers by their names in the net, those that begin with a prefix."""
        full = f"dense.{prefix}"
        net = self.versions.newest_net(self.base.dense, full)
        return {name.removeprefix("dense."): array for name, array in net.items()}


def differing_rows(rows: RowBlock, others: RowBlock) -> RowBlock:
    """Return the rows that are not among the others with the same values, states, counts and times, bit by bit."""
    places = others.find_rows(rows)
    equal, at = places >= 0, np.flatnonzero(places >= 0)
    for name in ("value", "state", "count", "last_seen"):
        equal[at] &= ~differing_bits(getattr(rows, name)[at], getattr(others, name)[places[at]])
    return rows.where(~equal)


def differing_bits(array: Array, other: Array) -> BoolArray:
    """Return which entries along the first axis differ in any bit: a NaN equals itself."""
    if not array.size:
        return np.zeros(len(array), np.bool_)
    mine, its = (np.ascontiguousarray(one).reshape(len(one), -1).view(np.uint8) for one in (array, other))
    return np.asarray((mine != its).any(axis=1))


class ImageRange:
    """Takes the place of a VersionRange across a gap: reads both versions whole, one range of keys at a time."""

    def __init__(self, index: LogIndex, after: int, last: int) -> None:
        self._older, self._newer = VersionImage(index, after), VersionImage(index, last)
        self.entries: list[IndexEntry] = index.entries_between(after, last)  # those that are left
        self.num_bytes = self._older.num_bytes + self._newer.num_bytes

    def changes(
        self, key_range: KeyRange, table: LogTable, *, with_states: bool = False, only: RowBlock | None = None
    ) -> RowBlock:
        """Return the newer version's rows that differ from the older one's, and tombstones of rows that are gone.

        A row that has expired by a rule has no tombstone, as in the records of the versions.
        """
        older, newer = (image.live_layer(table, [key_range]) for image in (self._older, self._newer))
        gone = older.where(~newer.holds(older))
        gone = gone.where(gone.live_mask(self._newer.meta.expiry_cutoffs))
        changes = merge_layers(gone.deleted(), differing_rows(newer, older))
        if only is not None:
            changes = changes.where(only.holds(changes))
        return changes if with_states else changes.without_states()

    def keys(self, key_range: KeyRange, table: LogTable) -> RowBlock:
        """Return `changes` with values of width 0."""
        return self.changes(key_range, table).keys_only()

    def tombstones(self, key_range: KeyRange, table: LogTable) -> RowBlock:
        """Return no keys: which rows were deleted and created again is not known."""
        return RowBlock.zeros(0, 0)

    def newest_net(self, older: Arrays, prefix: str = "") -> Arrays:
        """Return the net of the newer version, of what begins with `prefix`, whatever the `older` is."""
        base = self._newer.base
        return self._newer.versions.newest_net(base.dense | base.trainer_state, prefix)


def versions_between(index: LogIndex, after: int, last: int) -> VersionRange | ImageRange:
    """Return what the versions after `after` up to and including `last` change, whether or not all are in the log."""
    if index.runs.are_connected(after, last):
        return VersionRange(index, after, last)
    return ImageRange(index, after, last)
