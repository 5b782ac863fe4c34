"""Recalls rows from the tiers below memory: from the spill, whose tombstones hide older rows, then from the base.

What is found is uploaded to the device while that computes.
"""

# U unique keys, F of them that were found
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import BoolArray, Int64Array, Rows, UInt16Array
from springtide.embeddings.tiers.interface import RowSource, Spill
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE
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


RECALL_THREADS = "recall"  # the names of threads that recall rows begin with it


@dataclass(frozen=True)
class RecalledRows:
    """The result of a recall, row by row. The columns of `rows` are valid only where `found_U` is true."""

    rows: Rows
    found_U: BoolArray
    forgotten_U: BoolArray  # by `forget`, or expired
    from_spill_U: BoolArray
    upload: RowUpload | None = None  # of the found rows, also those that have expired since

    def without_expired(self, cutoffs: ExpiryCutoffs) -> "RecalledRows":
        """The recalled rows, of which the expired ones count as forgotten."""
        if not cutoffs or not self.found_U.any():
            return self
        expired_U = self.found_U & ~cutoffs.alive(self.rows.features, self.rows.last_seen)
        return RecalledRows(
            self.rows,
            self.found_U & ~expired_U,
            self.forgotten_U | expired_U,
            self.from_spill_U & ~expired_U,
            self.upload,
        )

    def take(self, chosen: Int64Array) -> "RecalledRows":
        """The results for the keys at these positions. The upload is kept only if these are all keys in order."""
        if len(chosen) == len(self.found_U) and np.array_equal(chosen, np.arange(len(chosen))):
            return self
        found_N, forgotten_N, from_spill_N = (column[chosen] for column in self._columns())
        return RecalledRows(self.rows.take(chosen), found_N, forgotten_N, from_spill_N)

    @staticmethod
    def concatenate(parts: Sequence["RecalledRows"]) -> "RecalledRows":
        columns = zip(*(part._columns() for part in parts), strict=True)
        found_N, forgotten_N, from_spill_N = map(np.concatenate, columns)
        return RecalledRows(Rows.concatenate([part.rows for part in parts]), found_N, forgotten_N, from_spill_N)

    def _columns(self) -> tuple[BoolArray, ...]:
        return (self.found_U, self.forgotten_U, self.from_spill_U)


class LowerTiers:
    """Recalls rows at once, or in a thread of its own ahead of their lookup. Does not apply expiry cutoffs."""

    def __init__(self, ops: Ops, spill: Spill, base: RowSource | None, retry_spill: Callable[[], None]) -> None:
        """`retry_spill` writes evicted rows that the spill has not taken yet, or raises SpillError."""
        self.ops, self.spill, self.base, self.retry_spill = ops, spill, base, retry_spill
        self._executor: ThreadPoolExecutor | None = None

    def recall(self, features_U: UInt16Array, ids_U: Int64Array) -> RecalledRows:
        """Read the rows of unique keys, each from the highest tier that has it. Changes no tier. SpillError."""
        self.retry_spill()
        return _recall(self.spill, self.base, features_U, ids_U)

    def recall_async(self, features_U: UInt16Array, ids_U: Int64Array) -> Future[RecalledRows]:
        """Recall rows while the caller computes; they are uploaded to the device too."""
        self.retry_spill()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=RECALL_THREADS)
        return self._executor.submit(_recall_and_upload, self.ops, self.spill, self.base, features_U, ids_U)

    def take(self, recalled: RecalledRows) -> RecalledRows:
        """Delete recalled rows from an exclusive tier, for memory gets them. Those lost since the recall are absent."""
        assert self.spill.host_tier is not None
        here_U = self.spill.host_tier.take(recalled.rows.features, recalled.rows.ids)
        return replace(recalled, found_U=recalled.found_U & here_U, from_spill_U=recalled.from_spill_U & here_U)

    def replace_rows(self, rows: Rows) -> None:
        """Note that rows with these keys are about to be written to memory."""
        if self.spill.is_exclusive and self.spill.host_tier is not None:
            self.spill.host_tier.take(rows.features, rows.ids)

    def put_back(self, recalled: RecalledRows) -> None:
        """Undo `take`, because memory could not get the rows."""
        self.spill.write(recalled.rows.take(recalled.found_U), 0)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
        self.spill.close()


def _recall_and_upload(
    ops: Ops, spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array
) -> RecalledRows:
    recalled = _recall(spill, base, features_U, ids_U)
    if not recalled.found_U.any():
        return recalled
    columns = recalled.rows, recalled.found_U, recalled.from_spill_U
    return replace(recalled, upload=RowUpload.start(ops, *columns, is_exclusive=spill.is_exclusive))


def _recall(spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array) -> RecalledRows:
    spilled = spill.find(features_U, ids_U)
    rows, found_U = spilled.rows, spilled.kinds == ROW
    from_spill_U = found_U.copy()
    absent = np.flatnonzero(spilled.kinds == ABSENT)
    if base is not None and len(absent):
        in_base, there = base.find(features_U[absent], ids_U[absent])
        here = absent[there]
        rows.values[here], rows.states[here] = in_base.values[there], in_base.states[there]
        rows.counts[here], rows.last_seen[here] = in_base.counts[there], in_base.last_seen[there]
        found_U[here] = True
    return RecalledRows(rows, found_U, spilled.kinds == TOMBSTONE, from_spill_U)
