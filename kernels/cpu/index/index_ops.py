"""The ops that find, place and choose keys."""

# U unique keys, N some of them, F features
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kernels.cpu.index import buckets, insert, scan
from kernels.cpu.index.eviction_score import TICK_MASK
from kernels.cpu.index.overflow import rows_before
from kernels.cpu.store.store import parts_of
from kernels.spec import InsertResult, Store

Array = npt.NDArray[Any]


class IndexOps:
    """The index's part of kernels/spec.py."""

    def find(self, store: Store, features_U: Array, ids_U: Array, mixed_U: Array) -> Array:
        p = parts_of(store)
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
        p = parts_of(store)
        return InsertResult(
            *insert.find_or_insert(p.buckets, p.overflow, features_U, ids_U, mixed_U, tick, protect_from)
        )

    def set_priorities(self, store: Store, slots_N: Array, priorities_N: Array) -> None:
        p = parts_of(store)
        buckets.set_priorities(p.buckets, p.overflow, slots_N, priorities_N)

    def erase(self, store: Store, slots_N: Array) -> None:
        p = parts_of(store)
        buckets.erase(p.buckets, p.overflow, p.meta, slots_N)

    def keys_of(self, store: Store, slots_N: Array) -> tuple[Array, Array]:
        p = parts_of(store)
        features_N, ids_N = buckets.keys_of(p.buckets, p.overflow, slots_N)
        return features_N, ids_N

    def dead(self, store: Store, slots_N: Array, features_N: Array, horizons_F: Array) -> Array:
        return cast(Array, scan.dead(parts_of(store).meta, slots_N, features_N, horizons_F))

    def occupied(self, store: Store, start: int, stop: int) -> Array:
        p = parts_of(store)
        return cast(Array, scan.occupied(p.buckets, p.overflow, start, stop))

    def expired(self, store: Store, start: int, stop: int, horizons_F: Array) -> Array:
        p = parts_of(store)
        return cast(Array, scan.expired(p.buckets, p.overflow, p.meta, start, stop, horizons_F))

    def lowest(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        num = min(num, store.num_slots)
        scores_N, mixed_N, slots_N = scan.lowest(parts_of(store).buckets, feature, num, protect_from)
        return cast(Array, slots_N[np.lexsort((slots_N, mixed_N, scores_N))])

    def overflow(self, store: Store, protect_from: int) -> Array:
        overflow = parts_of(store).overflow
        if overflow.num_free_1[0] == store.num_overflow:
            return np.empty(0, np.int64)
        return cast(Array, store.num_slots + rows_before(overflow, protect_from))
