"""What tiers have of some keys: the result of a search in one of them, or in all, on its way to the device."""

# U unique keys, N some of them, F of them that were found
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.tiers.record_kinds import ABSENT, IN_BASE, ROW, TOMBSTONE
from springtide.kernels.ops import Ops
from springtide.kernels.types import NEEDS_SPILL, SPILLED, Array, RowColumns
from springtide_client.array_types import BoolArray, Int64Array, UInt8Array, UInt16Array
from springtide_client.rows.row_block import RowBlock, find_sorted


@dataclass(frozen=True)
class RowUpload:
    """The found rows on their way to the device."""

    positions_F: Int64Array  # among the keys that were searched for
    _finish_copy: Callable[[], tuple[Array, ...]]

    def finish(self) -> tuple[Array, RowColumns]:
        """Positions and rows on the device. Does not wait: work queued after this call comes after the copy."""
        positions_F, *columns = self._finish_copy()
        return positions_F, RowColumns(*columns)


@dataclass(frozen=True)
class FoundRows:
    """The result of a search, row by row. The columns of `rows` behind the key are valid only where a row was found."""

    rows: RowBlock
    kinds_U: UInt8Array  # of springtide.embeddings.tiers.record_kinds
    upload: RowUpload | None = None  # of the found rows, also those that have expired since

    @staticmethod
    def nothing(features_U: UInt16Array, ids_U: Int64Array, dim: int, state_width: int) -> "FoundRows":
        """Nothing so far: to be filled."""
        return FoundRows(RowBlock.of_keys(features_U, ids_U, dim, state_width), np.full(len(ids_U), ABSENT, np.uint8))

    @property
    def found_U(self) -> BoolArray:
        """Which keys have a row."""
        found_U: BoolArray = (self.kinds_U == ROW) | (self.kinds_U == IN_BASE)
        return found_U

    @property
    def forgotten_U(self) -> BoolArray:
        """Which keys were deleted by `forget`, or have expired."""
        forgotten_U: BoolArray = self.kinds_U == TOMBSTONE
        return forgotten_U

    @property
    def from_spill_U(self) -> BoolArray:
        """Which keys have a row in the spill."""
        from_spill_U: BoolArray = self.kinds_U == ROW
        return from_spill_U

    def put(self, at: Int64Array | BoolArray, kinds: UInt8Array | int, contents: Sequence[npt.NDArray[Any]]) -> None:
        """Fill in what was found of the keys at these positions."""
        self.kinds_U[at] = kinds
        for to, column in zip(self.rows.contents, contents, strict=True):
            to[at] = column

    def put_found(self, at: Int64Array, found: "FoundRows") -> None:
        """Fill in the result of another search for the keys at these positions."""
        self.put(at, found.kinds_U, found.rows.contents)

    def put_batch(self, missing: Int64Array, batch: RowBlock) -> Int64Array:
        """Fill in those of the keys at positions `missing` that a batch in key order has. Return the others'."""
        rows = self.rows
        at = find_sorted(batch.key_hash, batch.feature, rows.key_hash[missing], rows.feature[missing])
        here = at >= 0
        if batch.tombstone is not None:
            self.kinds_U[missing[here]] = TOMBSTONE
        else:
            self.put(missing[here], ROW, [column[at[here]] for column in batch.contents])
        return missing[~here]

    def without_expired(self, cutoffs: ExpiryCutoffs) -> "FoundRows":
        """The result in which expired rows count as forgotten."""
        found_U = self.found_U
        if not cutoffs or not found_U.any():
            return self
        expired_U = found_U & ~cutoffs.alive(self.rows.feature, self.rows.last_seen)
        return self.with_kind(TOMBSTONE, expired_U)

    def with_kind(self, kind: int, chosen_U: BoolArray) -> "FoundRows":
        """The result with another kind where this is true."""
        return replace(self, kinds_U=np.where(chosen_U, np.uint8(kind), self.kinds_U))

    def take(self, chosen: Int64Array) -> "FoundRows":
        """The results for the keys at these positions. The upload is kept only if these are all keys in order."""
        if len(chosen) == len(self.kinds_U) and np.array_equal(chosen, np.arange(len(chosen))):
            return self
        return FoundRows(self.rows.take(chosen), self.kinds_U[chosen])

    def columns(self, *, is_exclusive: bool) -> tuple[npt.NDArray[Any], ...]:
        """The positions of the found rows, and their columns with their flags: what goes to the device.

        A row needs no spill if the lower tiers still have the same one: not after it was taken from an exclusive tier.
        """
        positions_F = np.flatnonzero(self.found_U)
        rows = self.rows if len(positions_F) == len(self.rows) else self.rows.take(positions_F)
        flags_F = np.where(self.from_spill_U[positions_F], np.int64(SPILLED), np.int64(0))
        if is_exclusive:
            flags_F = np.full(len(positions_F), NEEDS_SPILL, np.int64)
        return positions_F, *rows.contents, flags_F

    def start_upload(self, ops: Ops, *, is_exclusive: bool) -> "FoundRows":
        """Begin to copy the found rows to the device, if there are any. May be called in any thread."""
        columns = self.columns(is_exclusive=is_exclusive)
        if not len(columns[0]):
            return self
        return replace(self, upload=RowUpload(columns[0], ops.upload_async(*columns)))
