"""The rows or tombstones of one write to a spill, which can be searched while they wait to be written."""

# N rows
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import Int64Array, Rows, UInt16Array
from springtide.embeddings.tiers.record_kinds import ROW, TOMBSTONE
from springtide_client.keys import mix_keys
from springtide_client.rows.row_block import find_sorted

UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class WriteBatch:
    """Rows sorted by mixed key; without rows, tombstones."""

    mixed: UInt64Array
    features: UInt16Array
    ids: Int64Array
    rows: Rows | None

    @staticmethod
    def of(features_N: UInt16Array, ids_N: Int64Array, rows: Rows | None) -> "WriteBatch":
        """Copies of these rows, or tombstones of these keys; each key at most once."""
        mixed_N = mix_keys(features_N, ids_N)
        order = np.argsort(mixed_N)
        if rows is None:
            return WriteBatch(mixed_N[order], features_N[order], ids_N[order], None)
        ordered = rows.take(order)
        return WriteBatch(mixed_N[order], ordered.features, ordered.ids, ordered)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        columns = (self.features, self.ids) if self.rows is None else self.rows.columns()
        return self.mixed.nbytes + sum(column.nbytes for column in columns)

    def sub_batch(self, start: int, stop: int) -> "WriteBatch":
        """The keys start..stop, not copied."""
        cut = slice(start, stop)
        rows = None if self.rows is None else self.rows.take(cut)
        return WriteBatch(self.mixed[cut], self.features[cut], self.ids[cut], rows)

    def fill_found(self, mixed_U: UInt64Array, missing: Int64Array, kinds_U: UInt8Array, rows: Rows) -> Int64Array:
        """Fill in kinds and rows of those of the keys at positions `missing` that are here. Return the others'."""
        at = find_sorted(self.mixed, self.features, mixed_U[missing], rows.features[missing])
        here = at >= 0
        to, at = missing[here], at[here]
        kinds_U[to] = TOMBSTONE if self.rows is None else ROW
        if self.rows is not None:
            rows.values[to], rows.states[to] = self.rows.values[at], self.rows.states[at]
            rows.counts[to], rows.last_seen[to] = self.rows.counts[at], self.rows.last_seen[at]
        return missing[~here]
