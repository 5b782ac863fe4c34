"""A base file, sorted by mixed key: find and copy the rows of many keys in one call, without the GIL."""

# n rows of the image, K keys asked for, D dimension, S optimizer state width
from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.instructions import prefetch

AHEAD = 32  # keys whose places are asked for before their turn; two looks each
TWO_TO_MINUS_64 = 2.0**-64


@njit(nogil=True, cache=True)
def interpolate(mixed: Any, length: Any) -> Any:
    """The index of a mixed key if keys were spread evenly."""
    return min(np.int64(np.float64(mixed) * (TWO_TO_MINUS_64 * np.float64(length))), length - 1)


@njit(nogil=True, cache=True)
def interpolate_again(mixed_n: Any, place: Any, key: Any) -> Any:
    """A better estimate, after reading one key."""
    length = len(mixed_n)
    gap = np.float64(np.int64(key - mixed_n[np.uint64(place)]))
    moved = place + np.int64(gap * (np.float64(length) * TWO_TO_MINUS_64))
    return min(max(moved, 0), length - 1)


@njit(nogil=True, cache=True)
def interpolate_all(length: Any, mixed_K: Any) -> Any:
    """Where find_rows looks first: int64 indices (K)."""
    places_K = np.empty(len(mixed_K), np.int64)
    for k in range(len(mixed_K)):
        places_K[k] = interpolate(mixed_K[k], length)
    return places_K


@njit(nogil=True, cache=True)
def refine_places(mixed_n: Any, places_K: Any, mixed_K: Any) -> Any:
    """Where it looks next, int64."""
    nearer_K = np.empty(len(mixed_K), np.int64)
    for k in range(len(mixed_K)):
        nearer_K[k] = interpolate_again(mixed_n, places_K[k], mixed_K[k])
    return nearer_K


@njit(nogil=True, cache=True)
def lower_bound(mixed_n: Any, place: Any, key: Any) -> Any:
    """The first row whose mixed key is not below the key, in growing steps from a place."""
    length, step = len(mixed_n), 1
    if mixed_n[np.uint64(place)] < key:
        low, high = place + 1, place + 1
        while high < length and mixed_n[np.uint64(high)] < key:
            low = high + 1
            high += step
            step *= 2
        high = min(high, length)
    else:
        low, high = place, place
        while low > 0 and mixed_n[np.uint64(low - 1)] >= key:
            high = low - 1
            low = max(high - step, 0)
            step *= 2
    while low < high:
        middle = (low + high) >> 1
        if mixed_n[np.uint64(middle)] < key:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def find_rows(mixed_n: Any, feature_n: Any, mixed_K: Any, features_K: Any) -> Any:
    """The row of each key, int64, -1 where the image has none. Keys of two features may have one mixed key."""
    num_keys, length = len(mixed_K), len(mixed_n)
    rows_K = np.full(num_keys, -1, np.int64)
    if length == 0:
        return rows_K
    places = np.empty(num_keys, np.int64)
    for k in range(num_keys + 2 * AHEAD):
        # three passes, each some keys behind the one before: guess; look and guess again; look around
        if k < num_keys:
            places[k] = interpolate(mixed_K[k], length)
            prefetch(mixed_n, np.uint64(places[k]))
        near = k - AHEAD
        if 0 <= near < num_keys:
            places[near] = interpolate_again(mixed_n, places[near], mixed_K[near])
            prefetch(mixed_n, np.uint64(places[near]))
            prefetch(feature_n, np.uint64(places[near]))
        at = k - 2 * AHEAD
        if at >= 0:
            key, feature = mixed_K[at], features_K[at]
            row = lower_bound(mixed_n, places[at], key)
            while row < length and mixed_n[np.uint64(row)] == key:
                if feature_n[np.uint64(row)] == feature:
                    rows_K[at] = row
                    break
                row += 1
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
