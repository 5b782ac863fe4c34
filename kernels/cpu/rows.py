"""Rows in and out of a store, and the fused update.

A row's values are contiguous float32; what else is known of it is one record of four words, two records a cache line:
count, last-seen, flags, and the float32 optimizer state.
"""

# K keys of the batch, U unique ones, N some rows, D dimension, S state width
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.bits import prefetch
from kernels.cpu.hashing import first_value_row, mix_key

COUNT, LAST_SEEN, FLAGS, STATE = 0, 1, 2, 6  # STATE counts in float32
TOUCHED, CHANGED = 1, 2
AHEAD = 12


@njit(nogil=True, cache=True)
def gather(values: Any, dim: Any, slots_U: Any, inverse_K: Any, out_KD: Any) -> None:
    """values, out_KD: ravelled. Unsigned flat indices keep the wrap-around branch out of the loop."""
    num_keys, width = len(inverse_K), np.uint64(dim)
    for k in range(num_keys):
        if k + AHEAD < num_keys:
            slot = slots_U[np.uint64(inverse_K[k + AHEAD])]
            at = np.uint64(slot) * width if slot >= 0 else np.uint64(0)
            for line in range(0, dim, 16):
                prefetch(values, at + np.uint64(line))
        slot = slots_U[np.uint64(inverse_K[k])]
        to = np.uint64(k) * width
        if slot >= 0:
            at = np.uint64(slot) * width
            for d in range(width):
                out_KD[to + np.uint64(d)] = values[at + np.uint64(d)]
        else:
            for d in range(width):
                out_KD[to + np.uint64(d)] = np.float32(np.nan)


@njit(nogil=True, cache=True)
def read(values_CD: Any, meta: Any, states: Any, slots_N: Any, state_width: Any) -> Any:
    num, dim = len(slots_N), values_CD.shape[1]
    values_ND, states_NS = np.empty((num, dim), np.float32), np.empty((num, state_width), np.float32)
    counts_N, last_seen_N = np.empty(num, np.int64), np.empty(num, np.int64)
    flags_N = np.empty(num, np.int64)
    for n in range(num):
        slot = np.uint64(slots_N[n])
        for d in range(dim):
            values_ND[n, d] = values_CD[slot, d]
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
def update(
    values: Any,
    dim: Any,
    meta: Any,
    states: Any,
    slots_U: Any,
    order_K: Any,
    offsets_U1: Any,
    grads: Any,
    last_seen_U: Any,
    lr: Any,
    eps: Any,
    start: Any,
    stop: Any,
) -> Any:
    """values, grads, meta, states: ravelled. A sum of squares runs in 8 lanes, added pairwise: an order of its own."""
    width = np.uint64(dim)
    fresh_N = np.empty(stop - start, np.int64)
    num_fresh, num_refused = 0, 0
    sum_D = np.empty(dim, np.float32)
    lanes = np.empty(8, np.float32)
    for u in range(start, stop):
        if u + AHEAD < stop:
            slot = slots_U[u + AHEAD]
            if slot >= 0:
                ahead = np.uint64(slot)
                prefetch(meta, ahead * np.uint64(4))
                for line in range(0, dim, 16):
                    prefetch(values, ahead * width + np.uint64(line))
            ahead = np.uint64(order_K[np.uint64(offsets_U1[u + AHEAD])]) * width
            for line in range(0, dim, 16):
                prefetch(grads, ahead + np.uint64(line))
        slot = slots_U[u]
        if slot < 0:
            continue
        at = np.uint64(slot) * width
        about = np.uint64(slot) * np.uint64(4)
        first, last = np.uint64(offsets_U1[u]), np.uint64(offsets_U1[u + 1])
        source = np.uint64(order_K[first]) * width
        for d in range(width):
            sum_D[d] = grads[source + np.uint64(d)]
        for k in range(first + np.uint64(1), last):
            source = np.uint64(order_K[k]) * width
            for d in range(width):
                sum_D[d] += grads[source + np.uint64(d)]
        for lane in range(8):
            lanes[lane] = np.float32(0)
        whole = width - width % np.uint64(8)
        for block in range(np.uint64(0), whole, np.uint64(8)):
            for lane in range(np.uint64(8)):
                lanes[lane] += sum_D[block + lane] * sum_D[block + lane]
        for d in range(whole, width):
            lanes[d - whole] += sum_D[d] * sum_D[d]
        squares = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
        if np.isfinite(squares):
            state = states[np.uint64(slot) * np.uint64(8) + np.uint64(STATE)] + squares / np.float32(dim)
            states[np.uint64(slot) * np.uint64(8) + np.uint64(STATE)] = state
            step = lr / (np.sqrt(state) + eps)
            for d in range(width):
                values[at + np.uint64(d)] -= step * sum_D[d]
        else:
            num_refused += 1
        meta[about] += np.int64(last - first)
        meta[about + np.uint64(LAST_SEEN)] = max(meta[about + np.uint64(LAST_SEEN)], last_seen_U[u])
        flags = meta[about + np.uint64(FLAGS)]
        if flags & TOUCHED == 0:
            fresh_N[num_fresh] = slot
            num_fresh += 1
        meta[about + np.uint64(FLAGS)] = flags | TOUCHED | CHANGED
    return fresh_N[:num_fresh], num_refused


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
