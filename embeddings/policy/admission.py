"""Admission: an id gets a row of its own once it was seen often enough; until then it uses its feature's shared row."""

# N keys, F features, B blocks of the sketch
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.embeddings.config import Admission, FeaturePolicy
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, Sketch, UniqueKeys
from springtide_client.keys import SHARED_ROW_OFFSET

UInt64Array = npt.NDArray[np.uint64]
UInt8Array = npt.NDArray[np.uint8]
SHARED_ID = 0
BLOCK_BYTES = 64


class SketchInfo(NamedTuple):
    """The admission sketch's state besides its blocks, as a version contains it."""

    num_blocks: int  # also while nothing is counted
    counting: bool  # False: every id is admitted at once
    age: int  # how often all counts were halved


class RowlessKeys(NamedTuple):
    """Keys of a batch that had no row, on the host. They are counted once the batch is learned."""

    features_N: UInt16Array
    key_hash_N: UInt64Array
    occurrences_N: Int64Array


class AdmissionControl:
    """Counts in a sketch how often ids without a row were seen. False while every id is admitted at once.

    A lookup asks which keys are admitted; they are counted when it is learned from, by `update` or `touch`. So a
    version that is taken in between holds no count of a batch that it does not hold.
    """

    def __init__(self, ops: Ops, settings: Admission, features: Mapping[int, FeaturePolicy], *, tracked: bool) -> None:
        self.ops, self.settings, self.tracked = ops, settings, tracked
        self.age = 0
        self.sketch: Sketch | None = None
        self._default = settings.min_count
        self._min_counts = {f: policy.min_count for f, policy in features.items() if policy.min_count is not None}
        self._dirty_blocks: list[Array] = []  # since the last version, with repetitions
        # in every version: those in which another rank counts keys too, of which a reader takes the larger counts
        self.border_blocks: tuple[int, ...] = ()
        self._start_counting()

    def __bool__(self) -> bool:
        return self.sketch is not None

    def set_min_counts(self, min_counts: Mapping[int, int | None]) -> None:
        """Change the `min_count` of features; None: the table's. Counting begins with the first one above 1."""
        for feature, count in min_counts.items():
            if count is None:
                self._min_counts.pop(feature, None)
            else:
                self._min_counts[feature] = count
        self._start_counting()

    def min_counts(self, features_N: UInt16Array) -> Int64Array:
        """The number of occurrences after which a key of each of these features is admitted."""
        if not self._min_counts:
            return np.full(len(features_N), self._default, np.int64)
        by_feature_F = np.full(max([int(features_N.max(initial=0)), *self._min_counts]) + 1, self._default, np.int64)
        for feature, count in self._min_counts.items():
            by_feature_F[feature] = count
        needed_N: Int64Array = by_feature_F[features_N]
        return needed_N

    def advance(self, num_samples: int) -> None:
        """Set the age for this number of samples learned so far: all counts halve every `decay_every_samples`."""
        self.age = max(self.age, num_samples // self.settings.decay_every_samples)

    def admits(self, keys: RowlessKeys) -> BoolArray:
        """Which keys without a row get one, given their occurrences in this batch. Counts nothing."""
        features_N, key_hash_N, occurrences_N = keys
        if self.sketch is None or not len(features_N):
            return np.ones(len(features_N), np.bool_)
        if features_N.max() >= SHARED_ROW_OFFSET:
            raise ValueError(f"with admission features must be below {SHARED_ROW_OFFSET}, not {features_N.max()}")
        needed_N = self.min_counts(features_N)
        if (needed_N <= 1).all():  # as of crosses: the sketch, which may be on a device, is not asked
            return np.ones(len(features_N), np.bool_)
        (estimates_N,) = self.ops.fetch(self.ops.sketch_estimate(self.sketch, key_hash_N, self.age))
        seen_N = estimates_N.astype(np.int64) + occurrences_N
        admitted_N: BoolArray = seen_N >= needed_N
        return admitted_N

    def count(self, keys: RowlessKeys) -> None:
        """Add the occurrences of keys that had no row."""
        features_N, key_hash_N, occurrences_N = keys
        counted_N = self.min_counts(features_N) > 1
        if self.sketch is not None and counted_N.any():
            _, blocks = self.ops.sketch_add(self.sketch, key_hash_N[counted_N], occurrences_N[counted_N], self.age)
            if self.tracked:
                self._dirty_blocks.append(blocks)

    def was_seen(self, features_N: UInt16Array, key_hash_N: UInt64Array) -> BoolArray:
        """Which keys without a row were seen, but not often enough to be admitted."""
        if self.sketch is None or not len(features_N):
            return np.zeros(len(features_N), np.bool_)
        (estimates_N,) = self.ops.fetch(self.ops.sketch_estimate(self.sketch, key_hash_N, self.age))
        seen_N: BoolArray = (estimates_N > 0) & (self.min_counts(features_N) > 1)
        return seen_N

    def sketch_info(self) -> SketchInfo:
        return SketchInfo(self.settings.sketch_bytes // BLOCK_BYTES, self.sketch is not None, self.age)

    def read_all(self) -> UInt8Array:
        """The bytes of every block, (B, 64); no blocks while nothing is counted."""
        if self.sketch is None:
            return np.empty((0, BLOCK_BYTES), np.uint8)
        all_blocks = self.ops.xp.arange(self.sketch.num_blocks)
        blocks_B64: UInt8Array = self.ops.fetch(self.ops.sketch_read(self.sketch, all_blocks))[0]
        return blocks_B64

    @on_current_stream
    def take_delta(self) -> tuple[Int64Array, UInt8Array]:
        """The blocks that changed since the last call, ascending, and their bytes (B, 64); border blocks always."""
        if self.sketch is None or not (self._dirty_blocks or self.border_blocks):
            return np.empty(0, np.int64), np.empty((0, BLOCK_BYTES), np.uint8)
        (borders,) = self.ops.put(np.array(self.border_blocks, np.int64))
        dirty_B = self.ops.xp.unique(self.ops.xp.concatenate([*self._dirty_blocks, borders]))
        self._dirty_blocks.clear()
        blocks_B, bytes_B64 = self.ops.fetch(dirty_B, self.ops.sketch_read(self.sketch, dirty_B))
        return blocks_B, bytes_B64

    @on_current_stream
    def restore(self, blocks_B: Int64Array, bytes_B64: UInt8Array) -> None:
        """Write blocks of a version, without marking them dirty. ValueError if the sketch here is smaller."""
        if len(blocks_B) == 0:
            return
        if self.sketch is None:
            self.sketch = self.ops.new_sketch(self.settings.sketch_bytes)
        if blocks_B.max() >= self.sketch_info().num_blocks:
            raise ValueError(
                "admission sketch_bytes is smaller than when the log was written: restore it, or start a new log"
            )
        self.ops.sketch_write(self.sketch, blocks_B, bytes_B64)

    def num_bytes(self) -> int:
        return 0 if self.sketch is None else self.settings.sketch_bytes

    def _start_counting(self) -> None:
        if self.sketch is None and max([self._default, *self._min_counts.values()]) > 1:
            self.sketch = self.ops.new_sketch(self.settings.sketch_bytes)


class NotAdmitted(NamedTuple):
    """The keys of a batch that get no row of their own, on the host."""

    positions_N: Int64Array  # in U
    features_N: UInt16Array
    occurrences_N: Int64Array
    last_seen_N: Int64Array


class Decision(NamedTuple):
    """Which keys of a batch have no row, and which of these are admitted. Nothing is counted yet. On the host."""

    positions_N: Int64Array  # in U, ascending
    rowless: RowlessKeys
    last_seen_N: Int64Array
    admitted_N: BoolArray

    @property
    def not_admitted(self) -> NotAdmitted:
        """Those that get no row."""
        refused_N, (features_N, _, occurrences_N) = ~self.admitted_N, self.rowless
        return NotAdmitted(
            self.positions_N[refused_N],
            features_N[refused_N],
            occurrences_N[refused_N],
            self.last_seen_N[refused_N],
        )


def share_rows(ops: Ops, unique: UniqueKeys, not_admitted: NotAdmitted) -> tuple[UniqueKeys, BoolArray]:
    """Replace the keys that are not admitted by the shared keys of their features, which come last.

    Return the batch and which of its former unique keys were kept.
    """
    kept_U = np.ones(len(unique.ids_U), np.bool_)
    kept_U[not_admitted.positions_N] = False
    features_S, which = np.unique(not_admitted.features_N, return_inverse=True)
    num_kept, num_shared = int(np.count_nonzero(kept_U)), len(features_S)
    now_U = np.empty(len(kept_U), np.int64)
    now_U[kept_U] = np.arange(num_kept)
    now_U[not_admitted.positions_N] = num_kept + which

    occurrences_S, last_seen_S = np.zeros(num_shared, np.int64), np.zeros(num_shared, np.int64)
    np.add.at(occurrences_S, which, not_admitted.occurrences_N)
    np.maximum.at(last_seen_S, which, not_admitted.last_seen_N)
    shared_S, ids_S = (features_S + SHARED_ROW_OFFSET).astype(np.uint16), np.full(num_shared, SHARED_ID, np.int64)
    kept, now, *added = ops.put(np.flatnonzero(kept_U), now_U, shared_S, ids_S, occurrences_S, last_seen_S)
    features, ids, occurrences, last_seen = added
    join = ops.xp.concatenate
    batch = UniqueKeys(
        features_U=join([unique.features_U[kept], features]),
        ids_U=join([unique.ids_U[kept], ids]),
        key_hash_U=join([unique.key_hash_U[kept], ops.hash_keys(features, ids)]),
        inverse_K=now[unique.inverse_K],
        occurrences_U=join([unique.occurrences_U[kept], occurrences]),
        last_seen_U=join([unique.last_seen_U[kept], last_seen]),
    )
    return batch, kept_U
