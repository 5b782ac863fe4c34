"""The unique keys of a batch, and a batch's occurrences grouped by key."""

# K keys of the batch, U unique ones, P places of the scratch table
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.hashing import mix_key


@njit(nogil=True, cache=True)
def unique(features_K: Any, ids_K: Any, event_ms_K: Any, places_P: Any) -> Any:
    """places_P: int32 scratch, a power of two of at least 2 K places."""
    num_keys = len(ids_K)
    features_U, ids_U = np.empty(num_keys, np.uint16), np.empty(num_keys, np.int64)
    mixed_U = np.empty(num_keys, np.uint64)
    occurrences_U, last_seen_U = np.empty(num_keys, np.int64), np.empty(num_keys, np.int64)
    inverse_K = np.empty(num_keys, np.int64)
    places_P[:] = -1
    mask = np.uint64(len(places_P) - 1)
    num_unique = 0
    for k in range(num_keys):
        feature = features_K[k]
        mixed = mix_key(feature, ids_K[k])
        place = mixed & mask
        while True:
            u: Any = np.int64(places_P[place])
            if u < 0:
                u = num_unique
                num_unique += 1
                places_P[place] = np.int32(u)
                features_U[u], ids_U[u], mixed_U[u] = feature, ids_K[k], mixed
                occurrences_U[u], last_seen_U[u] = 1, event_ms_K[k]
                break
            # for one feature the mixed key is a bijection of the id
            if mixed_U[np.uint64(u)] == mixed and features_U[np.uint64(u)] == feature:
                occurrences_U[u] += 1
                last_seen_U[u] = max(last_seen_U[u], event_ms_K[k])
                break
            place = (place + np.uint64(1)) & mask
        inverse_K[k] = u
    return (
        features_U[:num_unique],
        ids_U[:num_unique],
        mixed_U[:num_unique],
        inverse_K,
        occurrences_U[:num_unique],
        last_seen_U[:num_unique],
    )


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
