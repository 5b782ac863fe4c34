"""The unique keys of a batch, and a batch's occurrences grouped by key."""

# K keys of the batch, U unique ones, P places of the scratch table
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.njit import njit

AHEAD = 16
U0, U1, U2, U3, U4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@njit(nogil=True, cache=True)
def unique(features_K: Any, ids_K: Any, event_ms_K: Any, places_P: Any, entries: Any) -> Any:
    """places_P: uint32 scratch, a power of two of at least 2 K places; entries: uint64 scratch, 4 words a key.

    A place holds a key's number plus one. An entry, half a cache line, is key hash, feature, occurrences, last-seen.
    Places are asked for some keys before their turn.
    """
    num_keys = len(ids_K)
    ids_U, inverse_K = np.empty(num_keys, np.int64), np.empty(num_keys, np.int64)
    ring = np.empty(AHEAD, np.uint64)
    places_P[:] = 0
    mask = np.uint64(len(places_P) - 1)
    for k in range(min(AHEAD, num_keys)):
        ring[k] = hash_key(features_K[k], ids_K[k])
        prefetch(places_P, ring[k] & mask)
    num_unique = 0
    for k in range(num_keys):
        turn = np.uint64(k) % np.uint64(AHEAD)
        key_hash = ring[turn]
        if k + AHEAD < num_keys:
            ring[turn] = hash_key(features_K[k + AHEAD], ids_K[k + AHEAD])
            prefetch(places_P, ring[turn] & mask)
        feature = np.uint64(features_K[k])
        place = key_hash & mask
        while True:
            u = np.uint64(places_P[place])
            if u == U0:
                u = np.uint64(num_unique)
                ids_U[u] = ids_K[k]
                num_unique += 1
                places_P[place] = np.uint32(num_unique)
                at = u * U4
                entries[at], entries[at + U1], entries[at + U2] = key_hash, feature, U1
                entries[at + U3] = np.uint64(event_ms_K[k])
                break
            u -= U1
            at = u * U4
            # for one feature the key hash is a bijection of the id
            if entries[at] == key_hash and entries[at + U1] == feature:
                entries[at + U2] += U1
                entries[at + U3] = np.uint64(max(np.int64(entries[at + U3]), event_ms_K[k]))
                break
            place = (place + U1) & mask
        inverse_K[np.uint64(k)] = np.int64(u)
    features_U, key_hash_U = np.empty(num_unique, np.uint16), np.empty(num_unique, np.uint64)
    occurrences_U, last_seen_U = np.empty(num_unique, np.int64), np.empty(num_unique, np.int64)
    for n in range(num_unique):
        at = np.uint64(n) * U4
        key_hash_U[n], features_U[n] = entries[at], np.uint16(entries[at + U1])
        occurrences_U[n], last_seen_U[n] = np.int64(entries[at + U2]), np.int64(entries[at + U3])
    return features_U, ids_U[:num_unique], key_hash_U, inverse_K, occurrences_U, last_seen_U


@njit(nogil=True, cache=True)
def group(inverse_K: Any, occurrences_U: Any) -> Any:
    num_unique = len(occurrences_U)
    offsets_U1 = np.empty(num_unique + 1, np.int64)
    next_U = np.empty(num_unique, np.int64)
    offsets_U1[0] = 0
    for u in range(num_unique):
        next_U[u] = offsets_U1[u]
        offsets_U1[u + 1] = offsets_U1[u] + occurrences_U[u]
    order_K = np.empty(len(inverse_K), np.int64)
    for k in range(len(inverse_K)):
        key = np.uint64(inverse_K[k])
        order_K[np.uint64(next_U[key])] = k
        next_U[key] += 1
    return order_K, offsets_U1
