"""A sample of all live rows, in whatever tier: how many there are, and since when the coldest were not seen."""

# N rows of a version or a base, M sampled rows
from collections.abc import Mapping

import numpy as np

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide_client.array_types import UInt64Array
from springtide_client.keys import SHARED_ROW_OFFSET, hash_keys

MAX_ROWS = 1 << 14  # of a sample: a hundredth of error
FORGOTTEN = -1  # a last-seen


class LiveRowSample:
    """Feature and last-seen of every row whose key hash is below a bound: one row in 2**`shift`, exact for those.

    It follows the versions of a log, so it depends on nothing but their contents.
    """

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self.max_rows, self.shift = max_rows, 0
        self._key_hash_M = np.empty(0, np.uint64)
        self._features_M = np.empty(0, np.uint16)
        self._last_seen_M = np.empty(0, np.int64)
        self._added: list[tuple[UInt64Array, UInt16Array, Int64Array]] = []
        self._num_added = 0

    def read_base(self, key_hash_N: UInt64Array, features_N: UInt16Array, last_seen_N: Int64Array) -> None:
        """Begin with the rows of a base, which are sorted by key hash: only its first ones are read."""
        self.shift = max(0, (-(-len(key_hash_N) // self.max_rows) - 1).bit_length())
        num = len(key_hash_N)
        if self.shift:
            num = int(np.searchsorted(key_hash_N, np.uint64(self.last_key_hash), side="right"))
        self._key_hash_M, self._added, self._num_added = np.array(key_hash_N[:num]), [], 0
        self._features_M, self._last_seen_M = np.array(features_N[:num]), np.array(last_seen_N[:num])

    def add(self, features_N: UInt16Array, ids_N: Int64Array, last_seen_N: Int64Array) -> None:
        """Note rows that were written after what was noted before."""
        key_hash_N = hash_keys(features_N, ids_N)
        chosen_N = (key_hash_N <= np.uint64(self.last_key_hash)) & (features_N < SHARED_ROW_OFFSET)
        self._added.append((key_hash_N[chosen_N], features_N[chosen_N], last_seen_N[chosen_N]))
        self._num_added += int(np.count_nonzero(chosen_N))
        if self._num_added > self.max_rows:
            self._merge()

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Note keys that were deleted after what was noted before."""
        self.add(features_N, ids_N, np.full(len(ids_N), FORGOTTEN, np.int64))

    def num_live(self, cutoffs: Mapping[int, int]) -> int:
        """About how many rows have not expired; fewer than `max_rows` are counted exactly."""
        self._drop_expired(cutoffs)
        return len(self._key_hash_M) << self.shift

    def coldest(self, num_rows: int) -> int:
        """A last-seen before which at least about so many rows were seen last. The caller has called `num_live`."""
        num = -(-num_rows >> self.shift)
        ordered_M = np.sort(self._last_seen_M)
        return int(ordered_M[min(num, len(ordered_M)) - 1]) + 1

    def features(self) -> list[int]:
        """The features of the sampled rows."""
        features: list[int] = np.unique(self._features_M).tolist()
        return features

    @property
    def last_key_hash(self) -> int:
        """Rows with a higher key hash are not in the sample."""
        return (1 << (64 - self.shift)) - 1

    def _drop_expired(self, cutoffs: Mapping[int, int]) -> None:
        self._merge()
        expiry = ExpiryCutoffs()
        if expiry.raise_to(cutoffs):
            self._keep(expiry.alive(self._features_M, self._last_seen_M))

    def _merge(self) -> None:
        """Apply what was added, the newest of each key, and halve the sample while it is too large."""
        if self._num_added:
            parts = [(self._key_hash_M, self._features_M, self._last_seen_M), *self._added]
            key_hash_N, features_N, last_seen_N = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            order = np.lexsort((features_N, key_hash_N))  # stable: of equal keys the newest comes last
            key_hash_N, features_N, last_seen_N = key_hash_N[order], features_N[order], last_seen_N[order]
            is_newest_N = np.ones(len(order), np.bool_)
            is_newest_N[:-1] = (key_hash_N[1:] != key_hash_N[:-1]) | (features_N[1:] != features_N[:-1])
            self._key_hash_M, self._features_M, self._last_seen_M = key_hash_N, features_N, last_seen_N
            self._keep(is_newest_N & (last_seen_N != FORGOTTEN))
        self._added, self._num_added = [], 0
        while len(self._key_hash_M) > self.max_rows:
            self.shift += 1
            self._keep(self._key_hash_M <= np.uint64(self.last_key_hash))

    def _keep(self, kept_M: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        self._key_hash_M, self._features_M = self._key_hash_M[kept_M], self._features_M[kept_M]
        self._last_seen_M = self._last_seen_M[kept_M]
