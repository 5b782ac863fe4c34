"""The ops that find, place and choose keys."""

# U unique keys, N some of them or slots, F features, H places of the heap
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.index import buckets, insert_and_evict
from springtide.kernels.cpu.index.buckets import (
    TICK_MASK,
    W,
    count_rows_before,
    is_taken,
    key_at,
    num_buckets_of,
    score_at,
    tick_of,
)
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.rows.rows import LAST_SEEN
from springtide.kernels.cpu.store.store import arrays_of
from springtide.kernels.njit import njit
from springtide.kernels.types import InsertResult, Store

AHEAD = 16


@njit(nogil=True, cache=True)
def is_occupied(buckets: Any, overflow: Any, num_slots: Any, slot: Any) -> Any:
    if slot < num_slots:
        return is_taken(buckets, slot)
    return overflow.taken_O[slot - num_slots] != 0


@njit(nogil=True, cache=True)
def occupied(buckets: Any, overflow: Any, start: Any, stop: Any) -> Any:
    num_slots = np.int64(num_buckets_of(buckets) * W)
    slots_N = np.empty(stop - start, np.int64)
    num = 0
    for slot in range(start, stop):
        if is_occupied(buckets, overflow, num_slots, slot):
            slots_N[num] = slot
            num += 1
    return slots_N[:num].copy()


@njit(nogil=True, cache=True)
def expired(buckets: Any, overflow: Any, meta: Any, start: Any, stop: Any, cutoffs_F: Any) -> Any:
    num_slots = np.int64(num_buckets_of(buckets) * W)
    slots_N = np.empty(stop - start, np.int64)
    num = 0
    for slot in range(start, stop):
        if not is_occupied(buckets, overflow, num_slots, slot):
            continue
        if slot < num_slots:
            feature, _ = key_at(buckets, np.uint64(slot) // W, np.uint64(slot) % W)
        else:
            feature = overflow.features_O[slot - num_slots]
        if feature < len(cutoffs_F) and meta[slot, LAST_SEEN] < cutoffs_F[feature]:
            slots_N[num] = slot
            num += 1
    return slots_N[:num].copy()


@njit(nogil=True, cache=True)
def dead(meta: Any, slots_N: Any, features_N: Any, cutoffs_F: Any) -> Any:
    positions_M = np.empty(len(slots_N), np.int64)
    num = 0
    for n in range(len(slots_N)):
        if n + AHEAD < len(slots_N) and slots_N[n + AHEAD] >= 0:
            prefetch(meta.reshape(-1), np.uint64(slots_N[n + AHEAD]) * np.uint64(meta.shape[1]))
        slot, feature = slots_N[n], features_N[n]
        if slot >= 0 and feature < len(cutoffs_F) and meta[slot, LAST_SEEN] < cutoffs_F[feature]:
            positions_M[num] = n
            num += 1
    return positions_M[:num].copy()


@njit(nogil=True, cache=True)
def has_higher_score(scores_H: Any, key_hash_H: Any, a: Any, b: Any) -> Any:
    """Whether a's score, or where they tie its key hash, is the higher one."""
    return scores_H[a] > scores_H[b] or (scores_H[a] == scores_H[b] and key_hash_H[a] > key_hash_H[b])


@njit(nogil=True, cache=True)
def swap(scores_H: Any, key_hash_H: Any, slots_H: Any, a: Any, b: Any) -> None:
    scores_H[a], scores_H[b] = scores_H[b], scores_H[a]
    key_hash_H[a], key_hash_H[b] = key_hash_H[b], key_hash_H[a]
    slots_H[a], slots_H[b] = slots_H[b], slots_H[a]


@njit(nogil=True, cache=True)
def lowest(buckets: Any, feature: Any, num: Any, protect_from: Any) -> Any:
    """Scores, key hashes and slots of the lowest, in no order: a heap with the highest of them on top."""
    num_slots = np.int64(num_buckets_of(buckets) * W)
    scores_H, key_hash_H, slots_H = np.empty(num, np.int64), np.empty(num, np.uint64), np.empty(num, np.int64)
    size = 0
    for slot in range(num_slots if num > 0 else 0):
        if not is_taken(buckets, slot):
            continue
        score = np.int64(buckets.words[score_at(slot)])
        if tick_of(score) >= protect_from or (size == num and score > scores_H[0]):
            continue
        of, id_ = key_at(buckets, np.uint64(slot) // W, np.uint64(slot) % W)
        if 0 <= feature != of:
            continue
        key_hash = hash_key(of, id_)
        if size < num:
            at = size
            scores_H[at], key_hash_H[at], slots_H[at] = score, key_hash, slot
            size += 1
            while at > 0 and has_higher_score(scores_H, key_hash_H, at, (at - 1) // 2):
                swap(scores_H, key_hash_H, slots_H, at, (at - 1) // 2)
                at = (at - 1) // 2
        elif score < scores_H[0] or key_hash < key_hash_H[0]:
            scores_H[0], key_hash_H[0], slots_H[0] = score, key_hash, slot
            at = 0
            while True:
                top = at
                for child in range(2 * at + 1, min(2 * at + 3, size)):
                    if has_higher_score(scores_H, key_hash_H, child, top):
                        top = child
                if top == at:
                    break
                swap(scores_H, key_hash_H, slots_H, at, top)
                at = top
    return scores_H[:size], key_hash_H[:size], slots_H[:size]


Array = npt.NDArray[Any]


class IndexOps:
    """The index's part of kernels/ops.py."""

    def find(self, store: Store, features_U: Array, ids_U: Array, key_hash_U: Array) -> Array:
        p = arrays_of(store)
        return cast(Array, buckets.find(p.buckets, p.overflow, features_U, ids_U, key_hash_U))

    def find_or_insert(
        self,
        store: Store,
        features_U: Array,
        ids_U: Array,
        key_hash_U: Array,
        tick: int,
        protect_from: int,
        num_new: int | None = None,
    ) -> InsertResult:
        if not 0 <= tick <= TICK_MASK:
            raise ValueError(f"tick must have 40 bits, not {tick}")
        p = arrays_of(store)
        return InsertResult(
            *insert_and_evict.find_or_insert(p.buckets, p.overflow, features_U, ids_U, key_hash_U, tick, protect_from)
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
        return cast(Array, dead(arrays_of(store).meta, slots_N, features_N, cutoffs_F))

    def occupied_slots(self, store: Store, start: int, stop: int) -> Array:
        p = arrays_of(store)
        return cast(Array, occupied(p.buckets, p.overflow, start, stop))

    def expired_slots(self, store: Store, start: int, stop: int, cutoffs_F: Array) -> Array:
        p = arrays_of(store)
        return cast(Array, expired(p.buckets, p.overflow, p.meta, start, stop, cutoffs_F))

    def lowest_scores(self, store: Store, feature: int, num: int, protect_from: int) -> Array:
        num = min(num, store.num_slots)
        scores_N, key_hash_N, slots_N = lowest(arrays_of(store).buckets, feature, num, protect_from)
        return cast(Array, slots_N[np.lexsort((slots_N, key_hash_N, scores_N))])

    def overflow_slots(self, store: Store, protect_from: int) -> Array:
        overflow = arrays_of(store).overflow
        if overflow.num_free_1[0] == store.num_overflow:
            return np.empty(0, np.int64)
        return cast(Array, store.num_slots + count_rows_before(overflow, protect_from))
