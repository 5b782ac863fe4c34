"""Rows in and out of a store.

A row's values are contiguous float32; what else is known of it is one record of four words, two records a cache line:
count, last-seen, flags, and the float32 optimizer state.
"""

# N some rows, D dimension, S state width
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.bits import prefetch
from kernels.cpu.hashing import first_value_row, mix_key

COUNT, LAST_SEEN, FLAGS, STATE = 0, 1, 2, 6  # STATE counts in float32
TOUCHED, CHANGED = 1, 2
AHEAD = 12  # rows asked for before their turn


@njit(nogil=True, cache=True)
def read(values_CD: Any, meta: Any, states: Any, slots_N: Any, state_width: Any) -> Any:
    num, dim = len(slots_N), values_CD.shape[1]
    values, width = values_CD.reshape(-1), np.uint64(values_CD.shape[1])
    values_ND, states_NS = np.empty((num, dim), np.float32), np.empty((num, state_width), np.float32)
    counts_N, last_seen_N = np.empty(num, np.int64), np.empty(num, np.int64)
    flags_N = np.empty(num, np.int64)
    values_out = values_ND.reshape(-1)
    for n in range(num):
        if n + AHEAD < num:
            ahead = np.uint64(slots_N[n + AHEAD])
            prefetch(meta.reshape(-1), ahead * np.uint64(4))
            for line in range(0, dim, 16):
                prefetch(values, ahead * width + np.uint64(line))
        slot = np.uint64(slots_N[n])
        at, to = slot * width, np.uint64(n) * width
        for d in range(width):
            values_out[to + np.uint64(d)] = values[at + np.uint64(d)]
        for s in range(state_width):
            states_NS[n, s] = states[slot, STATE + s]
        counts_N[n], last_seen_N[n], flags_N[n] = meta[slot, COUNT], meta[slot, LAST_SEEN], meta[slot, FLAGS]
    return values_ND, states_NS, counts_N, last_seen_N, flags_N


@njit(nogil=True, cache=True)
def scatter(
    values_CD: Any,
    meta: Any,
    states: Any,
    slots_N: Any,
    values_ND: Any,
    states_NS: Any,
    counts_N: Any,
    last_seen_N: Any,
    flags_N: Any,
) -> None:
    for n in range(len(slots_N)):
        slot = np.uint64(slots_N[n])
        for d in range(values_CD.shape[1]):
            values_CD[slot, d] = values_ND[n, d]
        for s in range(states_NS.shape[1]):
            states[slot, STATE + s] = states_NS[n, s]
        meta[slot, COUNT], meta[slot, LAST_SEEN], meta[slot, FLAGS] = counts_N[n], last_seen_N[n], flags_N[n]


@njit(nogil=True, cache=True)
def create(values_CD: Any, meta: Any, slots_N: Any, features_N: Any, ids_N: Any, mixed_seed: Any, factor: Any) -> None:
    for n in range(len(slots_N)):
        slot = np.uint64(slots_N[n])
        first_value_row(values_CD[slot], mix_key(features_N[n], ids_N[n]), mixed_seed, factor)
        meta[slot, COUNT], meta[slot, LAST_SEEN], meta[slot, FLAGS], meta[slot, 3] = 0, 0, CHANGED, 0


@njit(nogil=True, cache=True)
def clear_touched(meta: Any, slots_N: Any) -> Any:
    touched_M = np.empty(len(slots_N), np.int64)
    num = 0
    for n in range(len(slots_N)):
        slot = slots_N[n]
        if meta[slot, FLAGS] & TOUCHED:
            meta[slot, FLAGS] &= ~TOUCHED
            touched_M[num] = slot
            num += 1
    return touched_M[:num]


@njit(nogil=True, cache=True)
def set_flags(meta: Any, slots_N: Any, flags: Any) -> None:
    for n in range(len(slots_N)):
        meta[slots_N[n], FLAGS] = flags
