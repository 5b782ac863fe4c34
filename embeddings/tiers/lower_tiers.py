"""Fetches rows from the tiers below memory: from the spill, whose tombstones hide older rows, then from the base.

What is found is uploaded to the device while that computes.
"""

# U unique keys, F of them that were found
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.interface import RowSource, Spill
from springtide.embeddings.tiers.record_kinds import ABSENT
from springtide.kernels.ops import Ops
from springtide_client.rows.row_block import RowBlock

RECALL_THREADS = "fetch"  # the names of threads that fetch rows begin with it


class LowerTiers:
    """Fetches rows at once, or in a thread of its own ahead of their lookup. Does not apply expiry cutoffs."""

    def __init__(self, ops: Ops, spill: Spill, base: RowSource | None, retry_spill: Callable[[], None]) -> None:
        """`retry_spill` writes evicted rows that the spill has not taken yet, or raises SpillError."""
        self.ops, self.spill, self.base, self.retry_spill = ops, spill, base, retry_spill
        self._executor: ThreadPoolExecutor | None = None

    def fetch(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        """Read the rows of unique keys, each from the highest tier that has it. Changes no tier. SpillError."""
        self.retry_spill()
        return _fetch(self.spill, self.base, features_U, ids_U)

    def fetch_unless_empty(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows | None:
        """As `fetch`; None if all tiers are empty, which costs next to nothing and is counted alike."""
        self.retry_spill()
        if self.base is None and self.spill.is_empty_for(len(ids_U)):
            return None
        return _fetch(self.spill, self.base, features_U, ids_U)

    def fetch_async(self, features_U: UInt16Array, ids_U: Int64Array) -> Future[FoundRows] | None:
        """Fetch rows while the caller computes; they are uploaded to the device too. None if all tiers are empty."""
        self.retry_spill()
        if self.base is None and self.spill.is_empty_for(len(ids_U)):
            return None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=RECALL_THREADS)
        return self._executor.submit(_fetch_and_upload, self.ops, self.spill, self.base, features_U, ids_U)

    def take(self, fetched: FoundRows) -> FoundRows:
        """Delete fetched rows from an exclusive tier, for memory gets them. Those lost since the fetch are absent."""
        assert self.spill.host_tier is not None
        here_U = self.spill.host_tier.take(fetched.rows.feature, fetched.rows.id)
        return fetched.with_kind(ABSENT, fetched.found_U & ~here_U)

    def replace_rows(self, rows: RowBlock) -> None:
        """Note that rows with these keys are about to be written to memory."""
        if self.spill.is_exclusive and self.spill.host_tier is not None:
            self.spill.host_tier.take(rows.feature, rows.id)

    def put_back(self, fetched: FoundRows) -> None:
        """Undo `take`, because memory could not get the rows."""
        self.spill.write(fetched.rows.take(fetched.found_U), 0)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
        self.spill.close()


def _fetch_and_upload(
    ops: Ops, spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array
) -> FoundRows:
    return _fetch(spill, base, features_U, ids_U).start_upload(ops, is_exclusive=spill.is_exclusive)


def _fetch(spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
    found = spill.find(features_U, ids_U)
    absent = np.flatnonzero(found.kinds_U == ABSENT)
    if base is not None and len(absent):
        found.put_found(absent, base.find(features_U[absent], ids_U[absent]))
    return found
