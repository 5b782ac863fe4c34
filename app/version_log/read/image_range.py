"""Differences of two versions when those between them are no longer in the log: their images compared."""

# n rows
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.segments import IndexEntry
from springtide.app.version_log.read.version_range import KeyRange, VersionRange
from springtide.app.version_log.tables import LogTable, tables_of
from springtide_client.array_types import BoolArray
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.rows.layers import merge_layers
from springtide_client.rows.row_layer import RowLayer, empty_layer


class VersionImage(NamedTuple):
    """One version: a base, and the versions after it up to that one."""

    base: Base
    versions: VersionRange
    cutoffs: dict[str, int]

    @staticmethod
    def of(index: LogIndex, number: int) -> "VersionImage":
        """UserError if the version cannot be rebuilt."""
        base = index.base_before(number)
        return VersionImage(base, VersionRange(index, base.tip.number, number), index.meta(number).expiry_cutoffs)

    def rows(self, key_range: KeyRange, table: LogTable) -> RowLayer:
        """Return the live rows of a range of a table's keys, with their optimizer states."""
        changes = self.versions.changes(key_range, table, with_states=True)
        merged = merge_layers(key_range.select(table.base_layer(self.base)), changes)
        return merged.take(np.flatnonzero(merged.live_mask(self.cutoffs))).without_tombstones()

    @property
    def num_bytes(self) -> int:
        """About the bytes of its rows."""
        tables = tables_of(self.base.manifest)
        return self.versions.num_bytes + sum(table.base_layer(self.base).num_bytes for table in tables)


def _are_equal(rows: RowLayer, others: RowLayer) -> BoolArray:
    """Return which rows another layer has too, with the same values, states, counts and times."""
    places = others.find_mixed(rows.mixed, rows.feature)
    equal, at = np.zeros(len(rows), np.bool_), np.flatnonzero(places >= 0)
    there = places[at]
    same = (rows.count[at] == others.count[there]) & (rows.last_seen[at] == others.last_seen[there])
    for mine, its in ((rows.value, others.value), (rows.state, others.state)):
        assert mine is not None
        assert its is not None
        # compared as bits: a NaN equals itself
        same &= (mine[at].view(np.uint32) == its[there].view(np.uint32)).all(axis=1)
    equal[at] = same
    return equal


class ImageRange:
    """Takes the place of a VersionRange across a gap: reads both versions whole, one range of keys at a time."""

    def __init__(self, index: LogIndex, after: int, last: int) -> None:
        self._older, self._newer = VersionImage.of(index, after), VersionImage.of(index, last)
        self.entries: list[IndexEntry] = index.entries_between(after, last)  # those that are left
        self.num_bytes = self._older.num_bytes + self._newer.num_bytes

    def changes(
        self, key_range: KeyRange, table: LogTable, *, with_states: bool = False, only: RowLayer | None = None
    ) -> RowLayer:
        """Return the newer version's rows that differ from the older one's, and tombstones of rows that are gone.

        A row that has expired by a rule has no tombstone, as in the records of the versions.
        """
        older, newer = self._older.rows(key_range, table), self._newer.rows(key_range, table)
        written = newer.take(np.flatnonzero(~_are_equal(newer, older)))
        gone = older.take(np.flatnonzero(newer.find_mixed(older.mixed, older.feature) < 0))
        gone = gone.take(np.flatnonzero(gone.live_mask(self._newer.cutoffs)))
        changes = merge_layers(replace(gone, tombstone=np.ones(len(gone), np.bool_)), written)
        if only is not None:
            changes = changes.take(np.flatnonzero(only.find_mixed(changes.mixed, changes.feature) >= 0))
        return changes if with_states else replace(changes, state=None)

    def keys(self, key_range: KeyRange, table: LogTable) -> RowLayer:
        """Return `changes` with values of width 0."""
        return self.changes(key_range, table).keys_only()

    def tombstones(self, key_range: KeyRange, table: LogTable) -> RowLayer:
        """Return no keys: which rows were deleted and created again is not known."""
        return empty_layer(0)

    def newest_net(self, older: Arrays, prefix: str = "") -> Arrays:
        """Return the net of the newer version, of what begins with `prefix`, whatever the `older` is."""
        base = self._newer.base
        return self._newer.versions.newest_net(base.dense | base.trainer_state, prefix)


def versions_between(index: LogIndex, after: int, last: int) -> VersionRange | ImageRange:
    """Return what the versions after `after` up to and including `last` change, whether or not all are in the log."""
    if index.runs.are_connected(after, last):
        return VersionRange(index, after, last)
    return ImageRange(index, after, last)
