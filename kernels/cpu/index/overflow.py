"""The overflow area: rows of keys that found no slot in their bucket, in a small hash table of their own."""

# O overflow rows, P places of their hash table
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from springtide.kernels.cpu.hashing import mix_key
from springtide.kernels.cpu.index.eviction_score import tick_of

ONE = np.uint64(1)


class Overflow(NamedTuple):
    """Keys and score words of the overflow rows."""

    features_O: Any
    ids_O: Any
    scores_O: Any
    taken_O: Any  # 1 where the row is in use; a score word may be any number
    free_O: Any  # a stack of the rows that are not taken
    num_free_1: Any
    places_P: Any  # rows by mixed key, -1 where there is none; at least twice as many as rows


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
def place_of(overflow: Any, mixed: Any, feature: Any, id_: Any) -> Any:
    """Where in the hash table the key is, or the empty place where it belongs."""
    mask = np.uint64(len(overflow.places_P) - 1)
    place = mixed & mask
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
            overflow.places_P[place_of(overflow, mix_key(feature, id_), feature, id_)] = row


@njit(nogil=True, cache=True)
def remove(overflow: Any, row: Any) -> None:
    """Free a row; entries behind it in the hash table move up, so probe chains stay unbroken."""
    mask = np.uint64(len(overflow.places_P) - 1)
    feature, id_ = overflow.features_O[row], overflow.ids_O[row]
    hole = place_of(overflow, mix_key(feature, id_), feature, id_)
    at = hole
    while True:
        at = (at + ONE) & mask
        other = overflow.places_P[at]
        if other < 0:
            break
        home = mix_key(overflow.features_O[other], overflow.ids_O[other]) & mask
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
