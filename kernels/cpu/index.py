"""The index: buckets of 16 slots with digests, keys and scores; a slot's number is its row's. And the overflow area.

A bucket is 40 words of 8 bytes, five cache lines: 2 of digests (one byte a slot, 0 = empty), 4 of features (uint16),
2 unused, 16 of ids, 16 of scores. A miss costs the first line only, at any load (after HierarchicalKV).
"""

# U unique keys, N some slots, O overflow rows, P places of the overflow's hash table
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.bits import prefetch, trailing_zeros
from kernels.cpu.hashing import mix_key

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
def lane_of(words: Any, features: Any, bucket: Any, digest: Any, feature: Any, id_: Any) -> Any:
    """The key's lane in its bucket, or 16."""
    base = bucket * WORDS_U
    pattern = digest * LOW
    for half in range(2):
        word = words[base + np.uint64(half)] ^ pattern
        hits = zero_bytes(word)
        while hits != ZERO:
            lane = np.uint64(half) * EIGHT + (trailing_zeros(hits) >> S3)
            same_id = words[base + ID_AT_U + lane] == np.uint64(id_)
            if same_id and features[bucket * FEATURES_U + FEATURE_AT_U + lane] == feature:
                return lane
            hits &= hits - ONE
    return W


@njit(nogil=True, cache=True)
def overflow_place(places_P: Any, features_O: Any, ids_O: Any, mixed: Any, feature: Any, id_: Any) -> Any:
    """Where in the overflow's hash table the key is, or the empty place where it belongs."""
    mask = np.uint64(len(places_P) - 1)
    place = mixed & mask
    while True:
        row = places_P[place]
        if row < 0 or (ids_O[row] == id_ and features_O[row] == feature):
            return place
        place = (place + ONE) & mask


@njit(nogil=True, cache=True)
def find(
    words: Any,
    features: Any,
    num_buckets: Any,
    features_O: Any,
    ids_O: Any,
    places_P: Any,
    num_in_overflow: Any,
    features_U: Any,
    ids_U: Any,
    mixed_U: Any,
) -> Any:
    num_keys = len(ids_U)
    buckets = np.uint64(num_buckets)
    slots_U = np.empty(num_keys, np.int64)
    for u in range(min(AHEAD, num_keys)):
        base = bucket_of(mixed_U[u], buckets) * WORDS_U
        prefetch(words, base)
        prefetch(words, base + ID_AT_U)
        prefetch(words, base + ID_AT_U + EIGHT)
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            base = bucket_of(mixed_U[u + AHEAD], buckets) * WORDS_U
            prefetch(words, base)
            prefetch(words, base + ID_AT_U)
            prefetch(words, base + ID_AT_U + EIGHT)
        mixed = mixed_U[u]
        bucket = bucket_of(mixed, buckets)
        lane = lane_of(words, features, bucket, digest_of(mixed), features_U[u], ids_U[u])
        slot = np.int64(-1)
        if lane < W:
            slot = np.int64(bucket * W + lane)
        elif num_in_overflow > 0:
            row = places_P[overflow_place(places_P, features_O, ids_O, mixed, features_U[u], ids_U[u])]
            if row >= 0:
                slot = np.int64(buckets * W) + np.int64(row)
        slots_U[u] = slot
    return slots_U


@njit(nogil=True, cache=True)
def empty_lane(words: Any, base: Any) -> Any:
    """The first lane without a key, or 16."""
    for half in range(2):
        word = words[base + np.uint64(half)]
        hits = zero_bytes(word)
        if hits != ZERO:
            return np.uint64(half) * EIGHT + (trailing_zeros(hits) >> S3)
    return W


@njit(nogil=True, cache=True)
def victim_lane(words: Any, features: Any, bucket: Any, protect_from: Any) -> Any:
    """The lane with the lowest score below protect_from, the lower mixed key where they tie, or 16."""
    base = bucket * WORDS_U
    best, lowest, lowest_mixed = W, protect_from, ZERO
    for lane in range(WIDTH):
        at = np.uint64(lane)
        score = np.int64(words[base + SCORE_AT_U + at])
        if score < lowest:
            best, lowest = at, score
            lowest_mixed = mix_key(
                features[bucket * FEATURES_U + FEATURE_AT_U + at], np.int64(words[base + ID_AT_U + at])
            )
        elif score == lowest and best < W:
            mixed = mix_key(features[bucket * FEATURES_U + FEATURE_AT_U + at], np.int64(words[base + ID_AT_U + at]))
            if mixed < lowest_mixed:
                best, lowest_mixed = at, mixed
    return best


@njit(nogil=True, cache=True)
def find_or_insert(
    words: Any,
    features: Any,
    bytes_: Any,
    num_buckets: Any,
    features_O: Any,
    ids_O: Any,
    scores_O: Any,
    free_O: Any,
    places_P: Any,
    num_free_1: Any,
    features_U: Any,
    ids_U: Any,
    mixed_U: Any,
    score: Any,
    protect_from: Any,
) -> Any:
    num_keys = len(ids_U)
    buckets = np.uint64(num_buckets)
    slots_U = find(
        words,
        features,
        num_buckets,
        features_O,
        ids_O,
        places_P,
        len(free_O) - num_free_1[0],
        features_U,
        ids_U,
        mixed_U,
    )
    # first every key present takes the score, and with it protection; then the others look for room
    num_missing = 0
    for u in range(num_keys):
        slot = slots_U[u]
        if slot < 0:
            num_missing += 1
        elif slot < num_buckets * WIDTH:
            words[(np.uint64(slot) // W) * WORDS_U + SCORE_AT_U + np.uint64(slot) % W] = np.uint64(score)
        else:
            scores_O[slot - num_buckets * WIDTH] = score
    new_N = np.empty(num_missing, np.int64)
    victim_slots_V = np.empty(num_missing, np.int64)
    victim_features_V = np.empty(num_missing, np.uint16)
    victim_ids_V = np.empty(num_missing, np.int64)
    num_new, num_victims = 0, 0
    for u in range(num_keys if num_missing > 0 else 0):
        if slots_U[u] >= 0:
            continue
        mixed = mixed_U[u]
        bucket = bucket_of(mixed, buckets)
        base = bucket * WORDS_U
        lane = empty_lane(words, base)
        if lane == W:
            lane = victim_lane(words, features, bucket, protect_from)
            if lane < W:
                victim_slots_V[num_victims] = np.int64(bucket * W + lane)
                victim_features_V[num_victims] = features[bucket * FEATURES_U + FEATURE_AT_U + lane]
                victim_ids_V[num_victims] = np.int64(words[base + ID_AT_U + lane])
                num_victims += 1
        if lane < W:
            bytes_[bucket * BYTES_U + lane] = np.uint8(digest_of(mixed))
            features[bucket * FEATURES_U + FEATURE_AT_U + lane] = features_U[u]
            words[base + ID_AT_U + lane] = np.uint64(ids_U[u])
            words[base + SCORE_AT_U + lane] = np.uint64(score)
            slots_U[u] = np.int64(bucket * W + lane)
        elif num_free_1[0] > 0:
            num_free_1[0] -= 1
            row = free_O[num_free_1[0]]
            place = overflow_place(places_P, features_O, ids_O, mixed, features_U[u], ids_U[u])
            places_P[place] = row
            features_O[row], ids_O[row], scores_O[row] = features_U[u], ids_U[u], score
            slots_U[u] = num_buckets * WIDTH + row
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
def rebuild_overflow(features_O: Any, ids_O: Any, scores_O: Any, free_O: Any, places_P: Any, num_free_1: Any) -> None:
    """The hash table and the list of free rows anew, from the scores (-1 = free)."""
    places_P[:] = -1
    num_free_1[0] = 0
    for row in range(len(scores_O) - 1, -1, -1):
        if scores_O[row] < 0:
            free_O[num_free_1[0]] = row
            num_free_1[0] += 1
        else:
            mixed = mix_key(features_O[row], ids_O[row])
            places_P[overflow_place(places_P, features_O, ids_O, mixed, features_O[row], ids_O[row])] = row


@njit(nogil=True, cache=True)
def erase(bytes_: Any, num_buckets: Any, scores_O: Any, meta: Any, slots_N: Any) -> Any:
    """Empties slots; whether an overflow row was among them, so that its hash table must be made anew."""
    in_overflow = False
    for n in range(len(slots_N)):
        slot = slots_N[n]
        meta[slot, 2] = 0
        if slot < num_buckets * WIDTH:
            bytes_[(slot // WIDTH) * WORDS * 8 + slot % WIDTH] = 0
        else:
            scores_O[slot - num_buckets * WIDTH] = -1
            in_overflow = True
    return in_overflow


@njit(nogil=True, cache=True)
def keys_of(words: Any, features: Any, num_buckets: Any, features_O: Any, ids_O: Any, slots_N: Any) -> Any:
    features_N, ids_N = np.empty(len(slots_N), np.uint16), np.empty(len(slots_N), np.int64)
    for n in range(len(slots_N)):
        slot = slots_N[n]
        if slot < num_buckets * WIDTH:
            bucket, lane = slot // WIDTH, slot % WIDTH
            features_N[n] = features[bucket * WORDS * 4 + FEATURE_AT + lane]
            ids_N[n] = np.int64(words[bucket * WORDS + ID_AT + lane])
        else:
            features_N[n] = features_O[slot - num_buckets * WIDTH]
            ids_N[n] = ids_O[slot - num_buckets * WIDTH]
    return features_N, ids_N


@njit(nogil=True, cache=True)
def scan(
    bytes_: Any,
    features: Any,
    num_buckets: Any,
    features_O: Any,
    scores_O: Any,
    meta: Any,
    start: Any,
    stop: Any,
    feature: Any,
    last_seen_before: Any,
) -> Any:
    slots_N = np.empty(stop - start, np.int64)
    num = 0
    for slot in range(start, stop):
        if slot < num_buckets * WIDTH:
            bucket, lane = slot // WIDTH, slot % WIDTH
            if bytes_[bucket * WORDS * 8 + lane] == 0:
                continue
            of = np.int64(features[bucket * WORDS * 4 + FEATURE_AT + lane])
        else:
            if scores_O[slot - num_buckets * WIDTH] < 0:
                continue
            of = np.int64(features_O[slot - num_buckets * WIDTH])
        if (feature < 0 or of == feature) and meta[slot, 1] < last_seen_before:
            slots_N[num] = slot
            num += 1
    return slots_N[:num].copy()


@njit(nogil=True, cache=True)
def overflow(num_buckets: Any, scores_O: Any, protect_from: Any) -> Any:
    slots_N = np.empty(len(scores_O), np.int64)
    num = 0
    for row in range(len(scores_O)):
        if 0 <= scores_O[row] < protect_from:
            slots_N[num] = num_buckets * WIDTH + row
            num += 1
    return slots_N[:num].copy()
