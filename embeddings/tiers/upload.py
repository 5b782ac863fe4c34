"""Uploads recalled rows to the device while it computes."""

# U recalled keys, F of them that were found
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from springtide.embeddings.rows import BoolArray, Int64Array, Rows
from springtide.kernels.ops import Ops
from springtide.kernels.types import NEEDS_SPILL, SPILLED, Array, RowColumns


@dataclass(frozen=True)
class RowUpload:
    """The found rows of a recall on their way to the device."""

    positions_F: Int64Array  # among the recalled keys
    _finish_copy: Callable[[], tuple[Array, ...]]

    @staticmethod
    def start(
        ops: Ops, rows: Rows, found_U: BoolArray, from_spill_U: BoolArray, *, is_exclusive: bool = False
    ) -> "RowUpload":
        """Begin the copy. May be called in any thread."""
        positions_F = np.flatnonzero(found_U)
        if len(positions_F) < len(rows):
            rows = rows.take(positions_F)
        flags_F = recalled_flags(from_spill_U[positions_F], is_exclusive)
        copy = ops.upload_async(positions_F, rows.values, rows.states, rows.counts, rows.last_seen, flags_F)
        return RowUpload(positions_F, copy)

    def finish(self) -> tuple[Array, RowColumns]:
        """Positions and rows on the device. Does not wait: work queued after this call comes after the copy."""
        positions_F, *columns = self._finish_copy()
        return positions_F, RowColumns(*columns)


def recalled_flags(from_spill_F: BoolArray, is_exclusive: bool) -> Int64Array:
    """The flags of recalled rows: not NEEDS_SPILL if the lower tiers still have the same row."""
    if is_exclusive:
        return np.full(len(from_spill_F), NEEDS_SPILL, np.int64)
    return np.where(from_spill_F, np.int64(SPILLED), np.int64(0))
