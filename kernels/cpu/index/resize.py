"""Another number of buckets in the same memory: which keys would find no room, and every key to its new bucket.

Buckets are ranges of key hashes in ascending order, so a key's bucket only moves up when there are more buckets, and
down when there are fewer: taken from the far end, no key is moved onto one that has not had its turn.
"""

# N some slots, M moves
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.index.buckets import (
    BYTES_U,
    ELSEWHERE_AT_U,
    WIDTH,
    WORDS_U,
    W,
    bucket_of,
    is_taken,
    key_at,
    num_buckets_of,
    score_at,
)
from springtide.kernels.cpu.index.insert_and_evict import find_empty_slot, write_key
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.store.store import StoreArrays, arrays_of, refit
from springtide.kernels.njit import njit
from springtide.kernels.types import Store

ONE, S32 = np.uint64(1), np.uint64(32)
AHEAD = 16
NUM_MOVES = 1 << 14  # rows that move in one go


def resize(store: Store, num_slots: int) -> None:
    """Every key to its bucket among others, its row to its slot; the overflow rows stay behind the slots."""
    old_num_slots = store.num_slots
    parts = arrays_of(store)
    taken_N = np.flatnonzero(parts.overflow.taken_O)
    count_elsewhere(parts.buckets, parts.overflow, -1)
    if num_slots > old_num_slots:
        del parts
        refit(store, num_slots, arrays_of(store).overflow)
        parts = arrays_of(store)
        _move_rows(parts, (old_num_slots + taken_N)[::-1], (num_slots + taken_N)[::-1])
        _move_keys(parts, old_num_slots // WIDTH, num_slots // WIDTH)
    else:
        _move_keys(parts, old_num_slots // WIDTH, num_slots // WIDTH)
        _move_rows(parts, old_num_slots + taken_N, num_slots + taken_N)
        del parts
        refit(store, num_slots, arrays_of(store).overflow)
    parts = arrays_of(store)
    count_elsewhere(parts.buckets, parts.overflow, 1)


def _move_keys(parts: StoreArrays, num_old: int, num_new: int) -> None:
    done, from_M, to_M = 0, np.empty(NUM_MOVES, np.int64), np.empty(NUM_MOVES, np.int64)
    while done < num_old:
        done, num_moves = move_keys(parts.buckets, num_old, num_new, done, from_M, to_M)
        _move_rows(parts, from_M[:num_moves], to_M[:num_moves])


def _move_rows(parts: StoreArrays, from_M: Any, to_M: Any) -> None:
    from_M, to_M = np.ascontiguousarray(from_M), np.ascontiguousarray(to_M)
    for rows in (parts.values_CD, parts.meta, parts.states_CS):
        if rows.shape[1]:
            move_rows(rows.reshape(-1), rows.shape[1], from_M, to_M)


@njit(nogil=True, cache=True)
def first_high(bucket: Any, num_buckets: Any) -> Any:
    """The lowest high half of a key hash that belongs to this bucket."""
    return ((bucket << S32) + num_buckets - ONE) // num_buckets


@njit(nogil=True, cache=True)
def crowded(buckets: Any, num_old: Any, num_new: Any, first: Any, last: Any, slots_N: Any) -> Any:
    """Into slots_N, as far as it goes: those that are not among the 16 highest of their new bucket; how many there are.

    For the new buckets first..last. The 16 highest so far are kept unsorted; each key is compared once.
    """
    scores_16, key_hash_16 = np.empty(WIDTH, np.int64), np.empty(WIDTH, np.uint64)
    slots_16 = np.empty(WIDTH, np.int64)
    num_overflowed = 0
    for target in range(first, last):
        low, high = first_high(np.uint64(target), num_new), first_high(np.uint64(target) + ONE, num_new)
        num = 0
        for bucket in range((low * num_old) >> S32, (((high - ONE) * num_old) >> S32) + ONE):
            for lane in range(WIDTH):
                slot = np.int64(np.uint64(bucket) * W) + lane
                if not is_taken(buckets, slot):
                    continue
                feature, id_ = key_at(buckets, np.uint64(bucket), np.uint64(lane))
                key_hash = hash_key(feature, id_)
                if bucket_of(key_hash, num_new) != np.uint64(target):
                    continue
                score = np.int64(buckets.words[score_at(slot)])
                at = num
                if num < WIDTH:
                    num += 1
                else:
                    at = 0
                    for other in range(1, WIDTH):
                        lower = scores_16[other] < scores_16[at]
                        if lower or (scores_16[other] == scores_16[at] and key_hash_16[other] < key_hash_16[at]):
                            at = other
                    leaving = slots_16[at]
                    if score < scores_16[at] or (score == scores_16[at] and key_hash < key_hash_16[at]):
                        leaving, at = slot, -1
                    if num_overflowed < len(slots_N):
                        slots_N[num_overflowed] = leaving
                    num_overflowed += 1
                if at >= 0:
                    scores_16[at], key_hash_16[at], slots_16[at] = score, key_hash, slot
    return num_overflowed


@njit(nogil=True, cache=True)
def move_keys(buckets: Any, num_old: Any, num_new: Any, done: Any, from_M: Any, to_M: Any) -> Any:
    """Moves the keys of old buckets, `done` of which have had their turn, until the lists of moves are full.

    How many have had their turn now, and how many moves were listed.
    """
    num_moves = 0
    while done < num_old and num_moves + WIDTH <= len(from_M):
        bucket = np.uint64(num_old - 1 - done if num_new > num_old else done)
        done += 1
        for lane in range(WIDTH):
            slot = np.int64(bucket * W) + lane
            if not is_taken(buckets, slot):
                continue
            feature, id_ = key_at(buckets, bucket, np.uint64(lane))
            key_hash = hash_key(feature, id_)
            target = bucket_of(key_hash, np.uint64(num_new))
            if target == bucket:
                continue
            room = find_empty_slot(buckets, target)
            write_key(buckets, target, room, key_hash, feature, id_, buckets.words[score_at(slot)])
            buckets.bytes_[bucket * BYTES_U + np.uint64(lane)] = 0
            from_M[num_moves], to_M[num_moves] = slot, np.int64(target * W + room)
            num_moves += 1
    return done, num_moves


@njit(nogil=True, cache=True)
def move_rows(numbers: Any, width: Any, from_M: Any, to_M: Any) -> None:
    """Rows of so many numbers to other places, in this order; zeros stay behind."""
    step = np.uint64(width)
    for m in range(len(from_M)):
        if m + AHEAD < len(from_M):
            prefetch(numbers, np.uint64(from_M[m + AHEAD]) * step)
            prefetch(numbers, np.uint64(to_M[m + AHEAD]) * step)
        source, to = np.uint64(from_M[m]) * step, np.uint64(to_M[m]) * step
        for d in range(step):
            numbers[to + np.uint64(d)] = numbers[source + np.uint64(d)]
            numbers[source + np.uint64(d)] = 0


@njit(nogil=True, cache=True)
def count_elsewhere(buckets: Any, overflow: Any, by: Any) -> None:
    """Adds to what the buckets know of their keys in the overflow area, for every key there."""
    for row in range(len(overflow.taken_O)):
        if overflow.taken_O[row]:
            key_hash = hash_key(overflow.features_O[row], overflow.ids_O[row])
            buckets.words[bucket_of(key_hash, num_buckets_of(buckets)) * WORDS_U + ELSEWHERE_AT_U] += np.uint64(by)
