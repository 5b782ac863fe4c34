"""A filter of keys: says "perhaps" of every key that was added, and "no" of nearly every other.

Blocked Bloom (Putze, Sanders, Singler 2007), one cache line a key: a block is eight words, a key sets one bit in each.
16 bits a key: below 0.2 % of strange keys pass. The block is that of the key hash, the bits come from a product of it.
"""

# N keys
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.njit import njit

BLOCK_WORDS = 8
KEYS_A_BLOCK = 32
AHEAD = 16

SPREAD = np.uint64(0xD6E8_FEB8_6659_FD93)
EIGHT, ONE, S6, S15, S32, S63 = (np.uint64(x) for x in (8, 1, 6, 15, 32, 63))


@njit(nogil=True, cache=True)
def first_word(key_hash: Any, num_blocks: Any) -> Any:
    return (((key_hash >> S32) * num_blocks) >> S32) * EIGHT


@njit(nogil=True, cache=True)
def bits_of(key_hash: Any) -> Any:
    """48 bits, six for each word of the block."""
    product = key_hash * SPREAD
    return (product ^ (product >> S32)) >> S15


@njit(nogil=True, cache=True)
def contains(words: Any, key_hash_N: Any) -> Any:
    """Which keys may have been added; those that were all do."""
    num = len(key_hash_N)
    maybe_N = np.empty(num, np.bool_)
    num_blocks = np.uint64(len(words) // BLOCK_WORDS)
    for n in range(num):
        if n + AHEAD < num:
            prefetch(words, first_word(key_hash_N[n + AHEAD], num_blocks))
        at, bits = first_word(key_hash_N[n], num_blocks), bits_of(key_hash_N[n])
        missing = np.uint64(0)
        for _ in range(BLOCK_WORDS):
            missing |= ~words[at] & (ONE << (bits & S63))
            at += ONE
            bits >>= S6
        maybe_N[n] = missing == np.uint64(0)
    return maybe_N


@njit(nogil=True, cache=True)
def add(words: Any, key_hash_N: Any) -> Any:
    """Adds keys; how many of them changed a bit. One thread at a time, beside any number of `contains`."""
    num = len(key_hash_N)
    num_blocks = np.uint64(len(words) // BLOCK_WORDS)
    num_new = 0
    for n in range(num):
        if n + AHEAD < num:
            prefetch(words, first_word(key_hash_N[n + AHEAD], num_blocks))
        at, bits = first_word(key_hash_N[n], num_blocks), bits_of(key_hash_N[n])
        missing = np.uint64(0)
        for _ in range(BLOCK_WORDS):
            bit = ONE << (bits & S63)
            missing |= ~words[at] & bit
            words[at] |= bit
            at += ONE
            bits >>= S6
        num_new += missing != np.uint64(0)
    return num_new
