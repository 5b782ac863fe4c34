"""The index: buckets of 16 slots with digests, keys and score words; a slot's number is its row's.

A bucket is 40 words of 8 bytes, five cache lines: 2 of digests (one byte a slot, 0 = empty), 4 of features (uint16),
2 unused, 16 of ids, 16 of scores. A miss costs the first line only, at any load (after HierarchicalKV).
"""

# U unique keys, N some slots
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kernels.cpu.bits import prefetch, trailing_zeros
from kernels.cpu.hashing import mix_key
from kernels.cpu.overflow import place_of
from kernels.cpu.rows import FLAGS
from kernels.cpu.scores import tick_of, with_priority, with_tick

WIDTH = 16
WORDS = 40
FEATURE_AT, ID_AT, SCORE_AT = 8, 8, 24  # in uint16, in words, in words
AHEAD = 16

LOW = np.uint64(0x0101_0101_0101_0101)
REST = np.uint64(0x7F7F_7F7F_7F7F_7F7F)
ONE, ZERO, S3, S32 = np.uint64(1), np.uint64(0), np.uint64(3), np.uint64(32)
BYTE = np.uint64(0xFF)
W = np.uint64(WIDTH)
WORDS_U = np.uint64(WORDS)
FEATURE_AT_U, ID_AT_U, SCORE_AT_U = np.uint64(FEATURE_AT), np.uint64(ID_AT), np.uint64(SCORE_AT)
FEATURES_U = np.uint64(WORDS * 4)
BYTES_U = np.uint64(WORDS * 8)
EIGHT = np.uint64(8)


class Buckets(NamedTuple):
    """Three views of the same bytes."""

    words: Any  # uint64
    features: Any  # uint16
    bytes_: Any  # uint8


@njit(nogil=True, cache=True)
def num_buckets_of(buckets: Any) -> Any:
    return np.uint64(len(buckets.words)) // WORDS_U


@njit(nogil=True, cache=True)
def bucket_of(mixed: Any, num_buckets: Any) -> Any:
    return ((mixed >> S32) * num_buckets) >> S32


@njit(nogil=True, cache=True)
def digest_of(mixed: Any) -> Any:
    digest = mixed & BYTE
    return digest if digest != ZERO else ONE


@njit(nogil=True, cache=True)
def zero_bytes(word: Any) -> Any:
    """The high bit of every byte that is zero, and of no other.

    The shorter (word - LOW) & ~word & HIGH also shows a 1 above a zero: an erased slot, digest 0, would then pass for
    one of digest 1, and its old key be found.
    """
    return ~(((word & REST) + REST) | word | REST)


@njit(nogil=True, cache=True)
def lane_of(buckets: Any, bucket: Any, digest: Any, feature: Any, id_: Any) -> Any:
    """The key's lane in its bucket, or 16."""
    base = bucket * WORDS_U
    pattern = digest * LOW
    for half in range(2):
        word = buckets.words[base + np.uint64(half)] ^ pattern
        hits = zero_bytes(word)
        while hits != ZERO:
            lane = np.uint64(half) * EIGHT + (trailing_zeros(hits) >> S3)
            same_id = buckets.words[base + ID_AT_U + lane] == np.uint64(id_)
            if same_id and buckets.features[bucket * FEATURES_U + FEATURE_AT_U + lane] == feature:
                return lane
            hits &= hits - ONE
    return W


@njit(nogil=True, cache=True)
def key_at(buckets: Any, bucket: Any, lane: Any) -> Any:
    """The feature and the id in a lane."""
    feature = buckets.features[bucket * FEATURES_U + FEATURE_AT_U + lane]
    return feature, np.int64(buckets.words[bucket * WORDS_U + ID_AT_U + lane])


@njit(nogil=True, cache=True)
def score_at(slot: Any) -> Any:
    """Where in the words a slot's score is."""
    return (np.uint64(slot) // W) * WORDS_U + SCORE_AT_U + np.uint64(slot) % W


@njit(nogil=True, cache=True)
def is_taken(buckets: Any, slot: Any) -> Any:
    return buckets.bytes_[(np.uint64(slot) // W) * BYTES_U + np.uint64(slot) % W] != 0


@njit(nogil=True, cache=True)
def find(buckets: Any, overflow: Any, features_U: Any, ids_U: Any, mixed_U: Any) -> Any:
    num_keys = len(ids_U)
    num_buckets = num_buckets_of(buckets)
    has_overflow = len(overflow.free_O) > overflow.num_free_1[0]
    slots_U = np.empty(num_keys, np.int64)
    for u in range(min(AHEAD, num_keys)):
        base = bucket_of(mixed_U[u], num_buckets) * WORDS_U
        prefetch(buckets.words, base)
        prefetch(buckets.words, base + ID_AT_U)
        prefetch(buckets.words, base + ID_AT_U + EIGHT)
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            base = bucket_of(mixed_U[u + AHEAD], num_buckets) * WORDS_U
            prefetch(buckets.words, base)
            prefetch(buckets.words, base + ID_AT_U)
            prefetch(buckets.words, base + ID_AT_U + EIGHT)
        mixed = mixed_U[u]
        bucket = bucket_of(mixed, num_buckets)
        lane = lane_of(buckets, bucket, digest_of(mixed), features_U[u], ids_U[u])
        slot = np.int64(-1)
        if lane < W:
            slot = np.int64(bucket * W + lane)
        elif has_overflow:
            row = overflow.places_P[place_of(overflow, mixed, features_U[u], ids_U[u])]
            if row >= 0:
                slot = np.int64(num_buckets * W) + np.int64(row)
        slots_U[u] = slot
    return slots_U


@njit(nogil=True, cache=True)
def empty_lane(buckets: Any, bucket: Any) -> Any:
    """The first lane without a key, or 16."""
    for half in range(2):
        hits = zero_bytes(buckets.words[bucket * WORDS_U + np.uint64(half)])
        if hits != ZERO:
            return np.uint64(half) * EIGHT + (trailing_zeros(hits) >> S3)
    return W


@njit(nogil=True, cache=True)
def victim_lane(buckets: Any, bucket: Any, protect_from: Any) -> Any:
    """The lane with the lowest score among those with a tick below protect_from, or 16; the lower mixed key on ties."""
    best, lowest, lowest_mixed = W, np.int64(0), ZERO
    for lane in range(WIDTH):
        at = np.uint64(lane)
        score = np.int64(buckets.words[bucket * WORDS_U + SCORE_AT_U + at])
        if tick_of(score) >= protect_from or (best < W and score > lowest):
            continue
        feature, id_ = key_at(buckets, bucket, at)
        mixed = mix_key(feature, id_)
        if best == W or score < lowest or mixed < lowest_mixed:
            best, lowest, lowest_mixed = at, score, mixed
    return best


@njit(nogil=True, cache=True)
def put(buckets: Any, bucket: Any, lane: Any, mixed: Any, feature: Any, id_: Any, score: Any) -> None:
    """Writes a key and its score into a lane."""
    buckets.bytes_[bucket * BYTES_U + lane] = np.uint8(digest_of(mixed))
    buckets.features[bucket * FEATURES_U + FEATURE_AT_U + lane] = feature
    buckets.words[bucket * WORDS_U + ID_AT_U + lane] = np.uint64(id_)
    buckets.words[bucket * WORDS_U + SCORE_AT_U + lane] = np.uint64(score)


@njit(nogil=True, cache=True)
def find_or_insert(
    buckets: Any, overflow: Any, features_U: Any, ids_U: Any, mixed_U: Any, tick: Any, protect_from: Any
) -> Any:
    num_keys = len(ids_U)
    num_buckets = num_buckets_of(buckets)
    num_slots = np.int64(num_buckets * W)
    slots_U = find(buckets, overflow, features_U, ids_U, mixed_U)
    # first every key present takes the tick, and with it protection; then the others look for room
    num_missing = 0
    for u in range(num_keys):
        slot = slots_U[u]
        if slot < 0:
            num_missing += 1
        elif slot < num_slots:
            at = score_at(slot)
            buckets.words[at] = np.uint64(with_tick(buckets.words[at], tick))
        else:
            overflow.scores_O[slot - num_slots] = with_tick(overflow.scores_O[slot - num_slots], tick)
    new_N = np.empty(num_missing, np.int64)
    victim_slots_V = np.empty(num_missing, np.int64)
    victim_features_V = np.empty(num_missing, np.uint16)
    victim_ids_V = np.empty(num_missing, np.int64)
    num_new, num_victims = 0, 0
    for u in range(num_keys if num_missing > 0 else 0):
        if slots_U[u] >= 0:
            continue
        mixed = mixed_U[u]
        bucket = bucket_of(mixed, num_buckets)
        lane = empty_lane(buckets, bucket)
        if lane == W:
            lane = victim_lane(buckets, bucket, protect_from)
            if lane < W:
                victim_slots_V[num_victims] = np.int64(bucket * W + lane)
                victim_features_V[num_victims], victim_ids_V[num_victims] = key_at(buckets, bucket, lane)
                num_victims += 1
        if lane < W:
            put(buckets, bucket, lane, mixed, features_U[u], ids_U[u], tick)
            slots_U[u] = np.int64(bucket * W + lane)
        elif overflow.num_free_1[0] > 0:
            overflow.num_free_1[0] -= 1
            row = overflow.free_O[overflow.num_free_1[0]]
            overflow.places_P[place_of(overflow, mixed, features_U[u], ids_U[u])] = row
            overflow.features_O[row], overflow.ids_O[row] = features_U[u], ids_U[u]
            overflow.scores_O[row], overflow.taken_O[row] = tick, 1
            slots_U[u] = num_slots + row
        else:
            continue
        new_N[num_new] = u
        num_new += 1
    return (
        slots_U,
        new_N[:num_new],
        victim_slots_V[:num_victims],
        victim_features_V[:num_victims],
        victim_ids_V[:num_victims],
    )


@njit(nogil=True, cache=True)
def set_priorities(buckets: Any, overflow: Any, slots_N: Any, priorities_N: Any) -> None:
    num_slots = np.int64(num_buckets_of(buckets) * W)
    for n in range(len(slots_N)):
        slot = slots_N[n]
        if slot < 0:
            continue
        if slot < num_slots:
            at = score_at(slot)
            buckets.words[at] = np.uint64(with_priority(buckets.words[at], priorities_N[n]))
        else:
            row = slot - num_slots
            overflow.scores_O[row] = with_priority(overflow.scores_O[row], priorities_N[n])


@njit(nogil=True, cache=True)
def erase(buckets: Any, overflow: Any, meta: Any, slots_N: Any) -> Any:
    """Empties slots; whether an overflow row was among them, so that its hash table must be made anew."""
    num_slots = np.int64(num_buckets_of(buckets) * W)
    in_overflow = False
    for n in range(len(slots_N)):
        slot = slots_N[n]
        meta[slot, FLAGS] = 0
        if slot < num_slots:
            buckets.bytes_[(np.uint64(slot) // W) * BYTES_U + np.uint64(slot) % W] = 0
        else:
            overflow.taken_O[slot - num_slots] = 0
            in_overflow = True
    return in_overflow


@njit(nogil=True, cache=True)
def keys_of(buckets: Any, overflow: Any, slots_N: Any) -> Any:
    num_slots = np.int64(num_buckets_of(buckets) * W)
    features_N, ids_N = np.empty(len(slots_N), np.uint16), np.empty(len(slots_N), np.int64)
    for n in range(len(slots_N)):
        slot = slots_N[n]
        if slot < num_slots:
            features_N[n], ids_N[n] = key_at(buckets, np.uint64(slot) // W, np.uint64(slot) % W)
        else:
            features_N[n], ids_N[n] = overflow.features_O[slot - num_slots], overflow.ids_O[slot - num_slots]
    return features_N, ids_N
