"""Which of R servers holds each key: springtide_client.rows.hash_range.owners_of, compiled."""

# K keys, M some of them, R ranges of the key hash, J look-ups, B bytes
from itertools import pairwise
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.njit import njit
from springtide_client.array_types import Int64Array, UInt16Array

S32 = np.uint64(32)


@njit(nogil=True, cache=True)
def owner_of(feature: Any, id_: Any, count: Any) -> Any:
    return ((hash_key(feature, id_) >> S32) * np.uint64(count)) >> S32


@njit(cache=True)  # takes less than another thread would keep the GIL
def first_foreign(feature: Any, ids_K: Any, own: Any, count: Any) -> Any:
    """Return the place of the first key that is not in the range `own`, -1 if there is none."""
    for k in range(len(ids_K)):
        if owner_of(feature, ids_K[k], count) != np.uint64(own):
            return k
    return -1


@njit(cache=True)
def sort_by_owner(features_K: Any, ids_K: Any, order_K: Any, ends_R: Any) -> None:
    """Write the places of the keys, range by range and in their order, and where each range ends among them."""
    count = len(ends_R)
    owners_K = np.empty(len(ids_K), np.uint16)
    starts_R = np.zeros(count + 1, np.int64)
    one = len(features_K) == 1
    for k in range(len(ids_K)):
        owners_K[k] = owner_of(features_K[0 if one else k], ids_K[k], count)
        starts_R[owners_K[k] + 1] += 1
    for r in range(count):
        starts_R[r + 1] += starts_R[r]
        ends_R[r] = starts_R[r + 1]
    for k in range(len(ids_K)):
        order_K[starts_R[owners_K[k]]] = k
        starts_R[owners_K[k]] += 1


@njit(cache=True)
def place_rows(received_B: Any, order_M: Any, starts_J1: Any, row_bytes: Any, out_B: Any) -> None:
    """Copy received rows to where their keys' look-ups have them.

    `received_B` holds M rows and then M status bytes, of the keys at `order_M`, ascending. Look-up j has the keys from
    `starts_J1[j]` to `starts_J1[j + 1]`; in `out_B` lie its rows and then its status bytes, look-up after look-up.
    """
    j, num = 0, len(order_M)
    for m in range(num):
        key = order_M[m]
        while starts_J1[j + 1] <= key:
            j += 1
        first = starts_J1[j] * (row_bytes + 1)
        at = first + (key - starts_J1[j]) * row_bytes
        out_B[at : at + row_bytes] = received_B[m * row_bytes : (m + 1) * row_bytes]
        out_B[first + (starts_J1[j + 1] - starts_J1[j]) * row_bytes + key - starts_J1[j]] = received_B[
            num * row_bytes + m
        ]


def split_keys(features_K: UInt16Array, ids_K: Int64Array, count: int) -> dict[int, Int64Array]:
    """Return the places of the keys of each range that has some, by its number from 0, in ascending order."""
    order_K, ends_R = np.empty(len(ids_K), np.int64), np.empty(count, np.int64)
    sort_by_owner(features_K, ids_K, order_K, ends_R)
    ends = pairwise([0, *ends_R.tolist()])
    return {number: order_K[start:end] for number, (start, end) in enumerate(ends) if start < end}
