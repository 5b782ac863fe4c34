"""The living rows of a version, streamed in the order of their mixed keys: a base with the versions behind it."""

# n rows
from collections.abc import Iterator

import numpy as np
from springtide_client.format.records import VersionMeta
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from springtide_client.rows.disk_layer import aligned_chunks
from springtide_client.rows.layers import RowLayer, merge_layers

from app.version_log.read.index import LogIndex
from app.version_log.read.version_range import RANGE_BYTES, VersionRange, split_keys


class RowImage:
    """One version of a log. Rows may be streamed again and again; memory is bounded."""

    def __init__(self, index: LogIndex, number: int, *, range_bytes: int = RANGE_BYTES) -> None:
        """UserError where the log no longer leads there."""
        self.number = number
        self.base: Base = index.base_before(number)
        self.stretch = VersionRange(index, self.base.tip.number, number)
        self.meta: VersionMeta = index.meta(number)
        self.checksum = index.tip(number).checksum
        self.schema = self.base.manifest.decode_schema()
        self.dim = self.base.manifest.table.dim
        self._parts = split_keys(self.stretch.num_bytes, range_bytes)

    def rows(self, feature: int | None = None, *, with_values: bool = True) -> Iterator[RowLayer]:
        """The rows, some at a time; of one feature where it is named. Rows that ids not admitted share are nobody's."""
        for part in self._parts:
            changes = self.stretch.changes(part, self.dim) if with_values else self.stretch.keys(part)
            rows = part.select(self.base.rows)
            if not with_values:
                rows = RowLayer(rows.mixed, rows.feature, rows.id, rows.value[:, :0], rows.count, rows.last_seen)
            for old, new in aligned_chunks([rows, changes]):
                merged = merge_layers(old, new)
                wanted = merged.live_mask(self.meta.expiry_cutoffs) & (merged.feature < SHARED_ROW_OFFSET)
                if feature is not None:
                    wanted &= merged.feature == feature
                if wanted.any():
                    yield merged.take(np.flatnonzero(wanted))

    def dense(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        """The dense net's parameters and statistics by their own names."""
        arrays = self.base.dense | self.stretch.newest_arrays("dense.")
        return {name.removeprefix("dense."): array for name, array in arrays.items()}
