"""The score word of a slot, int64: (priority << 40) | tick. A full bucket gives up the lowest word it may.

The tick is the lookup that asked for the key last (40 bits), the priority a signed number of 24 bits: 0 for LRU, a
count for LFU, the user's score otherwise.
"""

from typing import Any

import numpy as np
from numba import njit

TICK_BITS = 40
TICK_MASK = np.int64((1 << TICK_BITS) - 1)
LOWEST_PRIORITY, HIGHEST_PRIORITY = np.int64(-(1 << 23)), np.int64((1 << 23) - 1)
SHIFT = np.int64(TICK_BITS)


@njit(nogil=True, cache=True)
def tick_of(word: Any) -> Any:
    return np.int64(word) & TICK_MASK


@njit(nogil=True, cache=True)
def with_tick(word: Any, tick: Any) -> Any:
    return (np.int64(word) & ~TICK_MASK) | np.int64(tick)


@njit(nogil=True, cache=True)
def with_priority(word: Any, priority: Any) -> Any:
    clamped = min(max(np.int64(priority), LOWEST_PRIORITY), HIGHEST_PRIORITY)
    return (clamped << SHIFT) | (np.int64(word) & TICK_MASK)
