"""The live rows of one version, streamed in the order of their mixed keys: a base merged with the versions after it."""

# n rows
from collections.abc import Iterator

import numpy as np
from springtide_client.format.records import VersionMeta
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from springtide_client.rows.layers import aligned_chunks, merge_layers
from springtide_client.rows.row_layer import RowLayer

from app.version_log.read.index import LogIndex
from app.version_log.read.version_range import RANGE_BYTES, VersionRange, split_keys


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
        self.dim = self.base.manifest.table.dim
        self._key_ranges = split_keys(self.versions.num_bytes, range_bytes)

    def rows(self, feature: int | None = None, *, with_values: bool = True) -> Iterator[RowLayer]:
        """Yield the rows, some at a time, of one feature if it is given; rows shared by several ids are left out."""
        for key_range in self._key_ranges:
            changes = self.versions.changes(key_range, self.dim) if with_values else self.versions.keys(key_range)
            rows = key_range.select(self.base.rows)
            if not with_values:
                rows = rows.keys_only()
            for old, new in aligned_chunks([rows, changes]):
                merged = merge_layers(old, new)
                wanted = merged.live_mask(self.meta.expiry_cutoffs) & (merged.feature < SHARED_ROW_OFFSET)
                if feature is not None:
                    wanted &= merged.feature == feature
                if wanted.any():
                    yield merged.take(np.flatnonzero(wanted))

    def dense(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        """Return the dense net's parameters and buffers by their names in the net."""
        arrays = self.base.dense | self.versions.newest_arrays("dense.")
        return {name.removeprefix("dense."): array for name, array in arrays.items()}
