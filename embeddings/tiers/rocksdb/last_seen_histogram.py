"""A histogram by feature of when the rows of a database were last seen.

It counts writes: a key written twice counts twice until the database is rewritten.
"""

# N rows, M buckets
import threading
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np

from springtide.embeddings.rows import Int64Array, UInt16Array

MAX_BUCKETS, BUCKETS_PER_FEATURE = 4096, 8
TIME_BITS = 44  # milliseconds until the year 2527; later times count as that, negative ones as 0
LATEST = (1 << TIME_BITS) - 1


class LastSeenHistogram:
    """Buckets of equal width, doubled in width whenever there are too many of them.

    One thread may add while others read.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._lock = threading.Lock()  # of the three that follow
        self._shift = 0
        self._buckets_M = np.empty(0, np.int64)  # feature and last-seen >> shift in one word, ascending
        self._counts_M = np.empty(0, np.int64)

    def add(self, features_N: UInt16Array, last_seen_N: Int64Array) -> None:
        with self._lock:
            buckets_N = np.clip(last_seen_N, 0, LATEST) >> self._shift | features_N.astype(np.int64) << TIME_BITS
            self._merge(buckets_N, np.ones(len(buckets_N), np.int64))
            self.num_rows += len(features_N)

    def num_below(self, cutoffs: Mapping[int, int]) -> int:
        """How many rows were last seen before their feature's cutoff, without those in the bucket of the cutoff."""
        with self._lock:
            features_M, ends_M, counts_M = self._buckets_M >> TIME_BITS, self._ends(), self._counts_M
        return sum(
            int(counts_M[(features_M == feature) & (ends_M <= cutoff)].sum()) for feature, cutoff in cutoffs.items()
        )

    @classmethod
    def merged(cls, parts: Iterable[Self]) -> "LastSeenHistogram":
        """One histogram of all rows, without features."""
        whole = LastSeenHistogram()
        for part in parts:
            with part._lock:
                shift, buckets_M, counts_M, num_rows = part._shift, part._buckets_M, part._counts_M, part.num_rows
            whole._widen(shift)
            whole._merge((buckets_M & LATEST) >> (whole._shift - shift), counts_M)
            whole.num_rows += num_rows
        return whole

    def quantile(self, fraction: float) -> int | None:
        """A last-seen below which about this fraction of the rows lies, and at least one row. None without rows."""
        if not self.num_rows:
            return None
        order = np.argsort(self._buckets_M & LATEST, kind="stable")
        reached = np.cumsum(self._counts_M[order])
        at = int(np.searchsorted(reached, fraction * self.num_rows))
        return int(self._ends()[order[min(at, len(order) - 1)]])

    def _ends(self) -> Int64Array:
        """The first last-seen after each bucket."""
        ends_M: Int64Array = ((self._buckets_M & LATEST) + 1) << self._shift
        return ends_M

    def _widen(self, shift: int) -> None:
        if shift > self._shift:
            features_M, times_M = self._buckets_M >> TIME_BITS, self._buckets_M & LATEST
            self._buckets_M = features_M << TIME_BITS | times_M >> (shift - self._shift)
            self._shift = shift

    def _merge(self, buckets_N: Int64Array, counts_N: Int64Array) -> None:
        self._buckets_M = np.concatenate([self._buckets_M, buckets_N])
        self._counts_M = np.concatenate([self._counts_M, counts_N])
        while True:
            self._buckets_M, inverse = np.unique(self._buckets_M, return_inverse=True)
            self._counts_M = np.bincount(inverse, self._counts_M, len(self._buckets_M)).astype(np.int64)
            num_features = len(np.unique(self._buckets_M >> TIME_BITS))
            if len(self._buckets_M) <= max(MAX_BUCKETS, BUCKETS_PER_FEATURE * num_features) or self._shift >= TIME_BITS:
                return
            self._widen(self._shift + 1)
