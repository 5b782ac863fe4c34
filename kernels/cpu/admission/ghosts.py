"""Which keys left not long ago: one word a key, direct-mapped, so that a newer key drives out an older one.

A word is a fingerprint, 32 bits of the mixed key, above the tick at which the key left, modulo 2**32; 0 = empty.
"""

# N keys, G words
from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.instructions import prefetch

AHEAD = 16
S32, LOW_HALF, ONE, ZERO = np.uint64(32), np.uint64(0xFFFF_FFFF), np.uint64(1), np.uint64(0)


@njit(nogil=True, cache=True)
def place_of(mixed: Any, num_words: Any) -> Any:
    return ((mixed >> S32) * np.uint64(num_words)) >> S32


@njit(nogil=True, cache=True)
def fingerprint_of(mixed: Any) -> Any:
    fingerprint = mixed & LOW_HALF
    return fingerprint if fingerprint != ZERO else ONE


@njit(nogil=True, cache=True)
def add(words_G: Any, mixed_N: Any, tick: Any) -> None:
    for n in range(len(mixed_N)):
        if n + AHEAD < len(mixed_N):
            prefetch(words_G, place_of(mixed_N[n + AHEAD], len(words_G)))
        word = (fingerprint_of(mixed_N[n]) << S32) | (np.uint64(tick) & LOW_HALF)
        words_G[place_of(mixed_N[n], len(words_G))] = word


@njit(nogil=True, cache=True)
def count(words_G: Any, mixed_N: Any, since_tick: Any) -> Any:
    num = 0
    for n in range(len(mixed_N)):
        if n + AHEAD < len(mixed_N):
            prefetch(words_G, place_of(mixed_N[n + AHEAD], len(words_G)))
        place = place_of(mixed_N[n], len(words_G))
        word = words_G[place]
        later = np.int32(np.uint32(word & LOW_HALF) - np.uint32(np.uint64(since_tick) & LOW_HALF))
        if word >> S32 == fingerprint_of(mixed_N[n]) and later >= 0:
            words_G[place] = ZERO
            num += 1
    return num
