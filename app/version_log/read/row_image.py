"""The live rows of one version, streamed in the order of their mixed keys: a base merged with the versions after it."""

# n rows
from collections.abc import Iterator

import numpy as np

from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import RANGE_BYTES, VersionRange, split_keys
from springtide.app.version_log.tables import LogTable, table_holding, tables_of
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from springtide_client.rows.layers import aligned_chunks, merge_layers
from springtide_client.rows.row_layer import RowLayer, sorted_layer


class RowImage:
    """One version of a log. Its rows can be streamed any number of times; memory is bounded."""

    def __init__(self, index: LogIndex, number: int, *, range_bytes: int = RANGE_BYTES) -> None:
        """UserError if the log no longer reaches that version."""
        self.number = number
        self.base: Base = index.base_before(number)
        self.versions = VersionRange(index, self.base.tip.number, number)
        self.meta: VersionMeta = index.meta(number)
        self.checksum = index.tip(number).checksum
        self.schema = self.base.manifest.decode_schema()
        self.tables = tables_of(self.base.manifest)
        self._key_ranges = split_keys(self.versions.num_bytes, range_bytes)

    def rows(
        self, feature: int | None = None, *, table: LogTable | None = None, with_values: bool = True
    ) -> Iterator[RowLayer]:
        """Yield the rows, some at a time, of one feature or table if it is given.

        Rows shared by several ids are left out. Those of one table follow the other's, and are as wide as it is.
        """
        tables = self.tables if table is None else (table,)
        for one in tables if feature is None else (table_holding(self.tables, feature),):
            for rows in self._table_rows(one, with_values=with_values):
                wanted = rows.live_mask(self.meta.expiry_cutoffs) & (rows.feature < SHARED_ROW_OFFSET)
                if feature is not None:
                    wanted &= rows.feature == feature
                if wanted.any():
                    yield rows.take(np.flatnonzero(wanted))

    def num_rows(self, table: LogTable) -> int:
        """Return how many live rows a table has, those shared by several ids included."""
        parts = self._table_rows(table, with_values=False)
        return sum(int(np.count_nonzero(rows.live_mask(self.meta.expiry_cutoffs))) for rows in parts)

    def _table_rows(self, table: LogTable, *, with_values: bool) -> Iterator[RowLayer]:
        """Yield the rows of a table in key order, the dead ones too."""
        for key_range in self._key_ranges:
            changes = (self.versions.changes if with_values else self.versions.keys)(key_range, table)
            rows = key_range.select(table.base_rows(self.base))
            for old, new in aligned_chunks([rows if with_values else rows.keys_only(), changes]):
                yield merge_layers(old, new)

    def table_of(self, feature: int) -> LogTable:
        """Return the table that holds the rows of a feature."""
        return table_holding(self.tables, feature)

    def find(self, feature: int, row_id: int) -> RowLayer | None:
        """Return the live row of a key, with its optimizer state; None if it has none. Reads all versions."""
        table, key = self.table_of(feature), (np.array([feature], np.uint16), np.array([row_id], np.int64))
        zeros = np.zeros(1, np.int64)
        wanted = sorted_layer(*key, np.empty((1, 0), np.float32), zeros, zeros)
        changed = self.versions.changes(split_keys(0)[0], table, with_states=True, only=wanted)
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
