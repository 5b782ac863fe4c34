"""Passes over slots: which are occupied, whose rows are dead, which have the lowest scores."""

# N some slots, F features, H places of the heap
from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.hashing import mix_key
from springtide.kernels.cpu.index.buckets import W, is_taken, key_at, num_buckets_of, score_at
from springtide.kernels.cpu.index.eviction_score import tick_of
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.rows.rows import LAST_SEEN

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
def has_higher_score(scores_H: Any, mixed_H: Any, a: Any, b: Any) -> Any:
    """Whether a's score, or where they tie its mixed key, is the higher one."""
    return scores_H[a] > scores_H[b] or (scores_H[a] == scores_H[b] and mixed_H[a] > mixed_H[b])


@njit(nogil=True, cache=True)
def swap(scores_H: Any, mixed_H: Any, slots_H: Any, a: Any, b: Any) -> None:
    scores_H[a], scores_H[b] = scores_H[b], scores_H[a]
    mixed_H[a], mixed_H[b] = mixed_H[b], mixed_H[a]
    slots_H[a], slots_H[b] = slots_H[b], slots_H[a]


@njit(nogil=True, cache=True)
def lowest(buckets: Any, feature: Any, num: Any, protect_from: Any) -> Any:
    """Scores, mixed keys and slots of the lowest, in no order: a heap with the highest of them on top."""
    num_slots = np.int64(num_buckets_of(buckets) * W)
    scores_H, mixed_H, slots_H = np.empty(num, np.int64), np.empty(num, np.uint64), np.empty(num, np.int64)
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
        mixed = mix_key(of, id_)
        if size < num:
            at = size
            scores_H[at], mixed_H[at], slots_H[at] = score, mixed, slot
            size += 1
            while at > 0 and has_higher_score(scores_H, mixed_H, at, (at - 1) // 2):
                swap(scores_H, mixed_H, slots_H, at, (at - 1) // 2)
                at = (at - 1) // 2
        elif score < scores_H[0] or mixed < mixed_H[0]:
            scores_H[0], mixed_H[0], slots_H[0] = score, mixed, slot
            at = 0
            while True:
                top = at
                for child in range(2 * at + 1, min(2 * at + 3, size)):
                    if has_higher_score(scores_H, mixed_H, child, top):
                        top = child
                if top == at:
                    break
                swap(scores_H, mixed_H, slots_H, at, top)
                at = top
    return scores_H[:size], mixed_H[:size], slots_H[:size]
