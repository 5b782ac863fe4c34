"""The index: buckets of 16 slots with digests, keys and score words; a slot's number is its row's.

A bucket is 40 words of 8 bytes, five cache lines: 2 of digests (one byte a slot, 0 = empty), 4 of features (uint16), 1
that counts its keys in the overflow area, 1 unused, 16 of ids, 16 of scores. A miss costs the first line only, at any
load (after HierarchicalKV).
"""

# U unique keys, N some slots, O overflow rows, P places of their hash table
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.intrinsics.instructions import equal_bytes, prefetch, trailing_zeros
from springtide.kernels.cpu.rows.rows import FLAGS
from springtide.kernels.njit import njit

TICK_BITS = 40
TICK_MASK = np.int64((1 << TICK_BITS) - 1)
LOWEST_PRIORITY, HIGHEST_PRIORITY = np.int64(-(1 << 23)), np.int64((1 << 23) - 1)
SHIFT = np.int64(TICK_BITS)


@njit(nogil=True, cache=True)
def tick_of(word: Any) -> Any:
    return np.int64(word) & TICK_MASK


@njit(nogil=True, cache=True)
def with_tick(word: Any, tick: Any) -> Any:
    return (np.int64(word) & ~TICK_MASK) | np.int64(tick)


@njit(nogil=True, cache=True)
def with_priority(word: Any, priority: Any) -> Any:
    clamped = min(max(np.int64(priority), LOWEST_PRIORITY), HIGHEST_PRIORITY)
    return (clamped << SHIFT) | (np.int64(word) & TICK_MASK)


class Overflow(NamedTuple):
    """Keys and score words of the overflow rows."""

    features_O: Any
    ids_O: Any
    scores_O: Any
    taken_O: Any  # 1 where the row is in use; a score word may be any number
    free_O: Any  # a stack of the rows that are not taken
    num_free_1: Any
    places_P: Any  # rows by key hash, -1 where there is none; at least twice as many as rows


def empty_overflow(num_overflow: int) -> Overflow:
    """An overflow area without a key."""
    overflow = Overflow(
        features_O=np.zeros(num_overflow, np.uint16),
        ids_O=np.zeros(num_overflow, np.int64),
        scores_O=np.zeros(num_overflow, np.int64),
        taken_O=np.zeros(num_overflow, np.uint8),
        free_O=np.zeros(num_overflow, np.int64),
        num_free_1=np.zeros(1, np.int64),
        places_P=np.zeros(1 << (2 * num_overflow).bit_length(), np.int64),
    )
    rebuild(overflow)
    return overflow


def grown_overflow(old: Overflow, num_overflow: int) -> Overflow:
    """Return the overflow with room for more: its keys stay on their rows."""
    grown = empty_overflow(num_overflow)
    for to, source in zip(grown[:4], old[:4], strict=True):
        to[: len(source)] = source
    rebuild(grown)
    return grown


@njit(nogil=True, cache=True)
def place_of(overflow: Any, key_hash: Any, feature: Any, id_: Any) -> Any:
    """Where in the hash table the key is, or the empty place where it belongs."""
    mask = np.uint64(len(overflow.places_P) - 1)
    place = key_hash & mask
    while True:
        row = overflow.places_P[place]
        if row < 0 or (overflow.ids_O[row] == id_ and overflow.features_O[row] == feature):
            return place
        place = (place + ONE) & mask


@njit(nogil=True, cache=True)
def rebuild(overflow: Any) -> None:
    """Rebuild the hash table and the stack of free rows from the rows in use."""
    overflow.places_P[:] = -1
    overflow.num_free_1[0] = 0
    for row in range(len(overflow.taken_O) - 1, -1, -1):
        if overflow.taken_O[row] == 0:
            overflow.free_O[overflow.num_free_1[0]] = row
            overflow.num_free_1[0] += 1
        else:
            feature, id_ = overflow.features_O[row], overflow.ids_O[row]
            overflow.places_P[place_of(overflow, hash_key(feature, id_), feature, id_)] = row


@njit(nogil=True, cache=True)
def remove(overflow: Any, row: Any) -> None:
    """Free a row; entries behind it in the hash table move up, so probe chains stay unbroken."""
    mask = np.uint64(len(overflow.places_P) - 1)
    feature, id_ = overflow.features_O[row], overflow.ids_O[row]
    hole = place_of(overflow, hash_key(feature, id_), feature, id_)
    at = hole
    while True:
        at = (at + ONE) & mask
        other = overflow.places_P[at]
        if other < 0:
            break
        home = hash_key(overflow.features_O[other], overflow.ids_O[other]) & mask
        if (at - home) & mask >= (at - hole) & mask:
            overflow.places_P[hole] = other
            hole = at
    overflow.places_P[hole] = -1
    overflow.taken_O[row] = 0
    overflow.free_O[overflow.num_free_1[0]] = row
    overflow.num_free_1[0] += 1


@njit(nogil=True, cache=True)
def count_rows_before(overflow: Any, protect_from: Any) -> Any:
    """The taken rows with a tick below protect_from."""
    rows_N = np.empty(len(overflow.taken_O), np.int64)
    num = 0
    for row in range(len(overflow.taken_O)):
        if overflow.taken_O[row] and tick_of(overflow.scores_O[row]) < protect_from:
            rows_N[num] = row
            num += 1
    return rows_N[:num].copy()


WIDTH = 16
WORDS = 40
FEATURE_AT, ELSEWHERE_AT, ID_AT, SCORE_AT = 8, 6, 8, 24  # in uint16, the others in words
AHEAD, READ_AHEAD = 48, 16

ONE, ZERO, S32 = np.uint64(1), np.uint64(0), np.uint64(32)
BYTE = np.uint64(0xFF)
W = np.uint64(WIDTH)
WORDS_U = np.uint64(WORDS)
FEATURE_AT_U, ELSEWHERE_AT_U = np.uint64(FEATURE_AT), np.uint64(ELSEWHERE_AT)
ID_AT_U, SCORE_AT_U = np.uint64(ID_AT), np.uint64(SCORE_AT)
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
def bucket_of(key_hash: Any, num_buckets: Any) -> Any:
    return ((key_hash >> S32) * num_buckets) >> S32


@njit(nogil=True, cache=True)
def digest_of(key_hash: Any) -> Any:
    digest = key_hash & BYTE
    return digest if digest != ZERO else ONE


@njit(nogil=True, cache=True)
def slot_in_bucket(buckets: Any, bucket: Any, digest: Any, feature: Any, id_: Any) -> Any:
    """The key's lane in its bucket, or 16."""
    hits = equal_bytes(buckets.bytes_, bucket * BYTES_U, np.uint8(digest))
    while hits != ZERO:
        lane = trailing_zeros(hits)
        same_id = buckets.words[bucket * WORDS_U + ID_AT_U + lane] == np.uint64(id_)
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
def prefetch_keys(buckets: Any, key_hash: Any, num_buckets: Any) -> None:
    """Asks for the three lines of a bucket that a find may read."""
    base = bucket_of(key_hash, num_buckets) * WORDS_U
    prefetch(buckets.words, base)
    prefetch(buckets.words, base + ID_AT_U)
    prefetch(buckets.words, base + ID_AT_U + EIGHT)


@njit(nogil=True, cache=True)
def find(buckets: Any, overflow: Any, features_U: Any, ids_U: Any, key_hash_U: Any) -> Any:
    num_keys = len(ids_U)
    num_buckets = num_buckets_of(buckets)
    slots_U = np.empty(num_keys, np.int64)
    for u in range(min(AHEAD, num_keys)):
        prefetch_keys(buckets, key_hash_U[u], num_buckets)
    for u in range(num_keys):
        if u + AHEAD < num_keys:
            prefetch_keys(buckets, key_hash_U[u + AHEAD], num_buckets)
        key_hash = key_hash_U[u]
        bucket = bucket_of(key_hash, num_buckets)
        lane = slot_in_bucket(buckets, bucket, digest_of(key_hash), features_U[u], ids_U[u])
        slot = np.int64(-1)
        if lane < W:
            slot = np.int64(bucket * W + lane)
        elif buckets.words[bucket * WORDS_U + ELSEWHERE_AT_U] != ZERO:
            row = overflow.places_P[place_of(overflow, key_hash, features_U[u], ids_U[u])]
            if row >= 0:
                slot = np.int64(num_buckets * W) + np.int64(row)
        slots_U[u] = slot
    return slots_U


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
def erase(buckets: Any, overflow: Any, meta: Any, slots_N: Any) -> None:
    num_buckets = num_buckets_of(buckets)
    num_slots = np.int64(num_buckets * W)
    for n in range(len(slots_N)):
        slot = slots_N[n]
        row = slot - num_slots
        meta[slot, FLAGS] = 0
        if row < 0:
            buckets.bytes_[(np.uint64(slot) // W) * BYTES_U + np.uint64(slot) % W] = 0
        elif overflow.taken_O[row]:
            bucket = bucket_of(hash_key(overflow.features_O[row], overflow.ids_O[row]), num_buckets)
            buckets.words[bucket * WORDS_U + ELSEWHERE_AT_U] -= ONE
            remove(overflow, row)


@njit(nogil=True, cache=True)
def keys_of(buckets: Any, overflow: Any, slots_N: Any) -> Any:
    num_slots = np.int64(num_buckets_of(buckets) * W)
    features_N, ids_N = np.empty(len(slots_N), np.uint16), np.empty(len(slots_N), np.int64)
    for n in range(len(slots_N)):
        if n + READ_AHEAD < len(slots_N):
            ahead = np.uint64(slots_N[n + READ_AHEAD])
            prefetch(buckets.words, (ahead // W) * WORDS_U)
            prefetch(buckets.words, (ahead // W) * WORDS_U + ID_AT_U + ahead % W)
        slot = slots_N[n]
        if slot < num_slots:
            features_N[n], ids_N[n] = key_at(buckets, np.uint64(slot) // W, np.uint64(slot) % W)
        else:
            features_N[n], ids_N[n] = overflow.features_O[slot - num_slots], overflow.ids_O[slot - num_slots]
    return features_N, ids_N
