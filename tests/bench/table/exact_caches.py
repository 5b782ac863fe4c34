"""Exact LRU and LFU caches over whole streams, key by key, as the reference for a table's hit rate.

LFU keeps the counts of evicted ids, always admits a new id, and among equal counts evicts the least recently used. Ids
are numbered 0..N-1 (`numbered`), so that everything is an array.
"""

# K keys of the stream, N distinct ids, R resident ids
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Int64Array = npt.NDArray[np.int64]
TICK_BITS = 40  # of a word ordered by priority, then by time


def numbered(ids_K: npt.NDArray[Any]) -> Int64Array:
    """Return the stream with ids renumbered 0..N-1."""
    return np.unique(ids_K, return_inverse=True)[1].astype(np.int64)


def exact_hits(policy: str, numbers_K: Int64Array, capacity: int) -> int:
    """Return how many keys of the stream an exact cache of `capacity` ids holds when they arrive."""
    num_ids = int(numbers_K.max()) + 1 if len(numbers_K) else 0
    return int(_hits(numbers_K, num_ids, capacity, policy == "lfu"))


@njit(cache=True)
def _hits(numbers_K: Any, num_ids: Any, capacity: Any, by_count: Any) -> Any:
    """Count hits with a heap of the resident ids, the next victim on top; an accessed id sinks."""
    words_R, ids_R = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    place_N, counts_N = np.full(num_ids, -1, np.int64), np.zeros(num_ids, np.int64)
    size, hits = 0, 0
    for k in range(len(numbers_K)):
        number = numbers_K[k]
        counts_N[number] += 1
        word = (counts_N[number] << TICK_BITS if by_count else 0) + k
        place = place_N[number]
        if place >= 0:
            hits += 1
            words_R[place] = word
            _sink(words_R, ids_R, place_N, place, size)
        elif size < capacity:
            words_R[size], ids_R[size], place_N[number] = word, number, size
            size += 1
            _rise(words_R, ids_R, place_N, size - 1)
        else:
            place_N[ids_R[0]] = -1
            words_R[0], ids_R[0], place_N[number] = word, number, 0
            _sink(words_R, ids_R, place_N, 0, size)
    return hits


@njit(cache=True)
def _swap(words_R: Any, ids_R: Any, place_N: Any, a: Any, b: Any) -> None:
    words_R[a], words_R[b] = words_R[b], words_R[a]
    ids_R[a], ids_R[b] = ids_R[b], ids_R[a]
    place_N[ids_R[a]], place_N[ids_R[b]] = a, b


@njit(cache=True)
def _sink(words_R: Any, ids_R: Any, place_N: Any, at: Any, size: Any) -> None:
    while True:
        least = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < size and words_R[child] < words_R[least]:
                least = child
        if least == at:
            return
        _swap(words_R, ids_R, place_N, at, least)
        at = least


@njit(cache=True)
def _rise(words_R: Any, ids_R: Any, place_N: Any, at: Any) -> None:
    while at > 0 and words_R[at] < words_R[(at - 1) // 2]:
        _swap(words_R, ids_R, place_N, at, (at - 1) // 2)
        at = (at - 1) // 2
