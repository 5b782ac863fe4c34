"""A slot for every key: empty ones first, then that of a bucket's lowest score, then one in the overflow area."""

# U unique keys, M those without a slot, V victims
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.index.buckets import (
    BYTES_U,
    EIGHT,
    ELSEWHERE_AT_U,
    FEATURE_AT_U,
    FEATURES_U,
    ID_AT_U,
    ONE,
    SCORE_AT_U,
    TICK_MASK,
    WORDS_U,
    ZERO,
    W,
    bucket_of,
    digest_of,
    find,
    key_at,
    num_buckets_of,
    place_of,
    score_at,
    with_tick,
)
from springtide.kernels.cpu.intrinsics.instructions import equal_bytes, lowest_words, prefetch, trailing_zeros
from springtide.kernels.njit import njit

AHEAD = 32


@njit(nogil=True, cache=True)
def find_empty_slot(buckets: Any, bucket: Any) -> Any:
    """The first lane without a key, or 16."""
    hits = equal_bytes(buckets.bytes_, bucket * BYTES_U, np.uint8(0))
    return trailing_zeros(hits) if hits != ZERO else W


@njit(nogil=True, cache=True)
def find_victim_slot(buckets: Any, bucket: Any, protect_from: Any) -> Any:
    """The lane with the lowest score among those with a tick below protect_from, or 16; the lower key hash on ties."""
    hits = lowest_words(buckets.words, bucket * WORDS_U + SCORE_AT_U, TICK_MASK, protect_from)
    if hits == ZERO:
        return W
    best = trailing_zeros(hits)
    hits &= hits - ONE
    if hits != ZERO:
        feature, id_ = key_at(buckets, bucket, best)
        best_key_hash = hash_key(feature, id_)
        while hits != ZERO:
            lane = trailing_zeros(hits)
            feature, id_ = key_at(buckets, bucket, lane)
            key_hash = hash_key(feature, id_)
            if key_hash < best_key_hash:
                best, best_key_hash = lane, key_hash
            hits &= hits - ONE
    return best


@njit(nogil=True, cache=True)
def write_key(buckets: Any, bucket: Any, lane: Any, key_hash: Any, feature: Any, id_: Any, score: Any) -> None:
    """Writes a key and its score into a lane."""
    buckets.bytes_[bucket * BYTES_U + lane] = np.uint8(digest_of(key_hash))
    buckets.features[bucket * FEATURES_U + FEATURE_AT_U + lane] = feature
    buckets.words[bucket * WORDS_U + ID_AT_U + lane] = np.uint64(id_)
    buckets.words[bucket * WORDS_U + SCORE_AT_U + lane] = np.uint64(score)


@njit(nogil=True, cache=True)
def touch(buckets: Any, overflow: Any, slots_U: Any, tick: Any) -> Any:
    """Gives every key that has a slot the tick, and with it protection; the positions of the others."""
    num_slots, num_keys = np.int64(num_buckets_of(buckets) * W), len(slots_U)
    missing_M, num_missing = np.empty(num_keys, np.int64), 0
    for u in range(num_keys):
        if u + AHEAD < num_keys and 0 <= slots_U[u + AHEAD] < num_slots:
            prefetch(buckets.words, score_at(slots_U[u + AHEAD]))
        slot = slots_U[u]
        if slot < 0:
            missing_M[num_missing] = u
            num_missing += 1
        elif slot < num_slots:
            at = score_at(slot)
            buckets.words[at] = np.uint64(with_tick(buckets.words[at], tick))
        else:
            overflow.scores_O[slot - num_slots] = with_tick(overflow.scores_O[slot - num_slots], tick)
    return missing_M[:num_missing]


@njit(nogil=True, cache=True)
def prefetch_bucket(buckets: Any, key_hash: Any, num_buckets: Any) -> None:
    base = bucket_of(key_hash, num_buckets) * WORDS_U
    for line in range(ZERO, WORDS_U, EIGHT):
        prefetch(buckets.words, base + np.uint64(line))


@njit(nogil=True, cache=True)
def find_or_insert(
    buckets: Any, overflow: Any, features_U: Any, ids_U: Any, key_hash_U: Any, tick: Any, protect_from: Any
) -> Any:
    num_buckets = num_buckets_of(buckets)
    num_slots = np.int64(num_buckets * W)
    slots_U = find(buckets, overflow, features_U, ids_U, key_hash_U)
    # first every key present takes the tick; then the others look for room
    missing_M = touch(buckets, overflow, slots_U, tick)
    num_missing = len(missing_M)
    new_N = np.empty(num_missing, np.int64)
    victim_slots_V = np.empty(num_missing, np.int64)
    victim_features_V = np.empty(num_missing, np.uint16)
    victim_ids_V = np.empty(num_missing, np.int64)
    num_new, num_victims, num_overflowed = 0, 0, 0
    for m in range(min(AHEAD, num_missing)):
        prefetch_bucket(buckets, key_hash_U[missing_M[m]], num_buckets)
    for m in range(num_missing):
        if m + AHEAD < num_missing:
            prefetch_bucket(buckets, key_hash_U[missing_M[m + AHEAD]], num_buckets)
        u = missing_M[m]
        key_hash = key_hash_U[u]
        bucket = bucket_of(key_hash, num_buckets)
        lane = find_empty_slot(buckets, bucket)
        if lane == W:
            lane = find_victim_slot(buckets, bucket, protect_from)
            if lane < W:
                victim_slots_V[num_victims] = np.int64(bucket * W + lane)
                victim_features_V[num_victims], victim_ids_V[num_victims] = key_at(buckets, bucket, lane)
                num_victims += 1
        if lane < W:
            write_key(buckets, bucket, lane, key_hash, features_U[u], ids_U[u], tick)
            slots_U[u] = np.int64(bucket * W + lane)
            new_N[num_new] = u
            num_new += 1
            continue
        num_overflowed += 1
        if overflow.num_free_1[0] > 0:
            overflow.num_free_1[0] -= 1
            row = overflow.free_O[overflow.num_free_1[0]]
            overflow.places_P[place_of(overflow, key_hash, features_U[u], ids_U[u])] = row
            overflow.features_O[row], overflow.ids_O[row] = features_U[u], ids_U[u]
            overflow.scores_O[row], overflow.taken_O[row] = tick, 1
            buckets.words[bucket * WORDS_U + ELSEWHERE_AT_U] += ONE
            slots_U[u] = num_slots + row
            new_N[num_new] = u
            num_new += 1
    return (
        slots_U,
        new_N[:num_new],
        victim_slots_V[:num_victims],
        victim_features_V[:num_victims],
        victim_ids_V[:num_victims],
        num_overflowed,
    )
