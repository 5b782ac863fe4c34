"""A base file, sorted by key hash: find and copy the rows of many keys in one call, without the GIL."""

# n rows of the image, K keys asked for, D dimension, S optimizer state width
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.sorted_keys import interpolate, interpolate_again, row_of
from springtide.kernels.njit import njit

AHEAD = 32  # keys whose places are asked for before their turn; two looks each


@njit(nogil=True, cache=True)
def interpolate_all(length: Any, key_hash_K: Any) -> Any:
    """Where find_rows looks first: int64 indices (K)."""
    places_K = np.empty(len(key_hash_K), np.int64)
    for k in range(len(key_hash_K)):
        places_K[k] = interpolate(length, key_hash_K[k])
    return places_K


@njit(nogil=True, cache=True)
def refine_places(key_hash_n: Any, places_K: Any, key_hash_K: Any) -> Any:
    """Where it looks next, int64."""
    nearer_K = np.empty(len(key_hash_K), np.int64)
    for k in range(len(key_hash_K)):
        nearer_K[k] = interpolate_again(key_hash_n.ctypes.data, len(key_hash_n), places_K[k], key_hash_K[k])
    return nearer_K


@njit(nogil=True, cache=True)
def find_rows(key_hash_n: Any, feature_n: Any, key_hash_K: Any, features_K: Any) -> Any:
    """The row of each key, int64, -1 where the image has none. Keys of two features may have one key hash."""
    num_keys, length = len(key_hash_K), len(key_hash_n)
    rows_K = np.full(num_keys, -1, np.int64)
    if length == 0:
        return rows_K
    places, mixed_address, feature_address = np.empty(num_keys, np.int64), key_hash_n.ctypes.data, feature_n.ctypes.data
    for k in range(num_keys + 2 * AHEAD):
        # three passes, each some keys behind the one before: guess; look and guess again; look around
        if k < num_keys:
            places[k] = interpolate(length, key_hash_K[k])
            prefetch(key_hash_n, np.uint64(places[k]))
        near = k - AHEAD
        if 0 <= near < num_keys:
            places[near] = interpolate_again(mixed_address, length, places[near], key_hash_K[near])
            prefetch(key_hash_n, np.uint64(places[near]))
            prefetch(feature_n, np.uint64(places[near]))
        at = k - 2 * AHEAD
        if at >= 0:
            rows_K[at] = row_of(mixed_address, feature_address, length, places[at], key_hash_K[at], features_K[at])
    return rows_K


@njit(nogil=True, cache=True)
def copy_rows(
    value_nD: Any,
    state_nS: Any,
    count_n: Any,
    last_seen_n: Any,
    rows_K: Any,
    values_KD: Any,
    states_KS: Any,
    counts_K: Any,
    last_seen_K: Any,
) -> None:
    """The columns of the rows that were found; where none was, nothing is written."""
    num_keys = len(rows_K)
    for k in range(num_keys + AHEAD):
        if k < num_keys and rows_K[k] >= 0:
            row = np.uint64(rows_K[k])
            prefetch(count_n, row)
            prefetch(last_seen_n, row)
            for d in range(0, value_nD.shape[1], 16):
                prefetch(value_nD.reshape(-1), row * np.uint64(value_nD.shape[1]) + np.uint64(d))
            for s in range(0, state_nS.shape[1], 16):
                prefetch(state_nS.reshape(-1), row * np.uint64(state_nS.shape[1]) + np.uint64(s))
        at = k - AHEAD
        if at >= 0 and rows_K[at] >= 0:
            row = np.uint64(rows_K[at])
            for d in range(value_nD.shape[1]):
                values_KD[at, d] = value_nD[row, d]
            for s in range(state_nS.shape[1]):
                states_KS[at, s] = state_nS[row, s]
            counts_K[at], last_seen_K[at] = count_n[row], last_seen_n[row]
