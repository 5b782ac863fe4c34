"""Find keys among ascending uint64 at an address, where hashed keys lie evenly: a place is guessed, then looked for."""

from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import read_uint16, read_uint64
from springtide.kernels.njit import njit

TWO_TO_MINUS_64 = 2.0**-64


@njit(nogil=True, cache=True)
def interpolate(length: Any, key: Any) -> Any:
    """A guess of a key's place, without a look."""
    return min(np.int64(np.float64(key) * (TWO_TO_MINUS_64 * np.float64(length))), length - 1)


@njit(nogil=True, cache=True)
def interpolate_again(address: Any, length: Any, place: Any, key: Any) -> Any:
    """A guess of the key's place that is better by one look."""
    gap = np.float64(np.int64(key - read_uint64(address, place)))
    moved = place + np.int64(gap * (np.float64(length) * TWO_TO_MINUS_64))
    return min(max(moved, 0), length - 1)


@njit(nogil=True, cache=True)
def lower_bound(address: Any, length: Any, place: Any, key: Any, step: Any) -> Any:
    """The first place whose number is not below the key, looked for from a guess in growing steps, the first of `step`.

    Log n looks where the guess is bad: keys that were chosen to lie unevenly cost no more than a binary search.
    """
    if read_uint64(address, place) < key:
        low, high = place + 1, place + step
        while high < length and read_uint64(address, high) < key:
            low = high + 1
            step *= 2
            high += step
        high = min(high, length)
    else:
        low, high = place - step, place
        while low >= 0 and read_uint64(address, low) >= key:
            high = low
            step *= 2
            low -= step
        low = max(low + 1, 0)
    while low < high:
        middle = (low + high) >> 1
        if read_uint64(address, middle) < key:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def row_of(hash_address: Any, feature_address: Any, length: Any, place: Any, key: Any, feature: Any) -> Any:
    """The row of (key hash, feature), -1 where there is none; keys of two features may have one key hash."""
    row = lower_bound(hash_address, length, place, key, 1)
    while row < length and read_uint64(hash_address, row) == key:
        if read_uint16(feature_address, row) == feature:
            return row
        row += 1
    return -1
