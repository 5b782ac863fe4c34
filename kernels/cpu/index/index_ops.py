"""The ops that find, place and choose keys."""

# U unique keys, N some of them, F features
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.index import buckets, insert_and_evict, scan
from springtide.kernels.cpu.index.eviction_score import TICK_MASK
from springtide.kernels.cpu.index.overflow import count_rows_before
from springtide.kernels.cpu.store.store import arrays_of
from springtide.kernels.types import InsertResult, Store

Array = npt.NDArray[Any]


class IndexOps:
    """The index's part of kernels/ops.py."""

    def find(self, store: Store, features_U: Array, ids_U: Array, mixed_U: Array) -> Array:
        p = arrays_of(store)
        return cast(Array, buckets.find(p.buckets, p.overflow, features_U, ids_U, mixed_U))

    def find_or_insert(
        self,
        store: Store,
        features_U: Array,
        ids_U: Array,
        mixed_U: Array,
        tick: int,
        protect_from: int,
        num_new: int | None = None,
    ) -> InsertResult:
        if not 0 <= tick <= TICK_MASK:
            raise ValueError(f"tick must have 40 bits, not {tick}")
        p = arrays_of(store)
        return InsertResult(
            *insert_and_evict.find_or_insert(p.buckets, p.overflow, features_U, ids_U, mixed_U, tick, protect_from)
        )

    def set_priorities(self, store: Store, slots_N: Array, priorities_N: Array) -> None:
        p = arrays_of(store)
        buckets.set_priorities(p.buckets, p.overflow, slots_N, priorities_N)

    def erase(self, store: Store, slots_N: Array) -> None:
        p = arrays_of(store)
        buckets.erase(p.buckets, p.overflow, p.meta, slots_N)

    def keys_of(self, store: Store, slots_N: Array) -> tuple[Array, Array]:
        p = arrays_of(store)
        features_N, ids_N = buckets.keys_of(p.buckets, p.overflow, slots_N)
        return features_N, ids_N

    def find_expired(self, store: Store, slots_N: Array, features_N: Array, cutoffs_F: Array) -> Array:
        return cast(Array, scan.dead(arrays_of(store).meta, slots_N, features_N, cutoffs_F))

    def occupied_slots(self, store: Store, start: int, stop: int) -> Array:
        p = arrays_of(store)
        return cast(Array, scan.occupied(p.buckets, p.overflow, start, stop))

    def expired_slots(self, store: Store, start: int, stop: int, cutoffs_F: Array) -> Array:
        p = arrays_of(store)
        return cast(Array, scan.expired(p.buckets, p.overflow, p.meta, start, stop, cutoffs_F))

    def lowest_scores(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        num = min(num, store.num_slots)
        scores_N, mixed_N, slots_N = scan.lowest(arrays_of(store).buckets, feature, num, protect_from)
        return cast(Array, slots_N[np.lexsort((slots_N, mixed_N, scores_N))])

    def overflow_slots(self, store: Store, protect_from: int) -> Array:
        overflow = arrays_of(store).overflow
        if overflow.num_free_1[0] == store.num_overflow:
            return np.empty(0, np.int64)
        return cast(Array, store.num_slots + count_rows_before(overflow, protect_from))
