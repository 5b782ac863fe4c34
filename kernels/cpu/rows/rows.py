"""Rows in and out of a store, with all their columns; how they lie there is in store.py."""

# N some rows, D dimension, S state width
from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.hashing import first_value_row, mix_key
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.intrinsics.simd import load, store, zeros

COUNT, LAST_SEEN, FLAGS, SCALAR = 0, 1, 2, 6  # SCALAR counts in float32
DIRTY, NEEDS_SPILL = 1, 2
AHEAD = 12  # rows asked for before their turn
LANES = 16
LANES_U, U4, ONE = np.uint64(LANES), np.uint64(4), np.uint64(1)


@njit(nogil=True, cache=True)
def copy_row(source: Any, at: Any, to: Any, to_at: Any, width: Any) -> None:
    """`width` numbers, float32 or bfloat16 on either side."""
    blank = zeros(LANES)
    for d in range(np.uint64(0), width, LANES_U):
        rest = min(LANES_U, width - np.uint64(d))
        store(to, to_at + np.uint64(d), rest, load(blank, source, at + np.uint64(d), rest))


@njit(nogil=True, cache=True)
def read(
    values_CD: Any,
    meta: Any,
    scalars: Any,
    states_CS: Any,
    wide: Any,
    slots_N: Any,
    start: Any,
    stop: Any,
    values_ND: Any,
    states_NS: Any,
    counts_N: Any,
    last_seen_N: Any,
    flags_N: Any,
) -> None:
    dim, own, state_width = values_CD.shape[1], states_CS.shape[1], states_NS.shape[1]
    before = own - wide if own < state_width else own  # numbers before the one in the record
    # flattened once: to do so for each row costs two atomic operations
    values, values_out, records = values_CD.reshape(-1), values_ND.reshape(-1), meta.reshape(-1)
    states, states_out = states_CS.reshape(-1), states_NS.reshape(-1)
    width, own_width, whole_width = np.uint64(dim), np.uint64(own), np.uint64(state_width)
    first_width, wide_width = np.uint64(before), np.uint64(wide)
    line = 64 // values_CD.itemsize
    for n in range(start, stop):
        if n + AHEAD < stop and slots_N[n + AHEAD] >= 0:
            ahead = np.uint64(slots_N[n + AHEAD])
            prefetch(records, ahead * U4)
            for d in range(0, dim, line):
                prefetch(values, ahead * width + np.uint64(d))
            for s in range(0, own, 16):
                prefetch(states, ahead * own_width + np.uint64(s))
        if slots_N[n] < 0:
            values_ND[n], states_NS[n] = np.nan, 0
            counts_N[n], last_seen_N[n], flags_N[n] = 0, 0, 0
            continue
        slot, to = np.uint64(slots_N[n]), np.uint64(n)
        copy_row(values, slot * width, values_out, to * width, width)
        at, state = slot * own_width, to * whole_width
        copy_row(states, at, states_out, state, first_width)
        if own < state_width:
            states_NS[n, before] = scalars[slot, SCALAR]
            copy_row(states, at + first_width, states_out, state + first_width + ONE, wide_width)
        counts_N[n], last_seen_N[n], flags_N[n] = meta[slot, COUNT], meta[slot, LAST_SEEN], meta[slot, FLAGS]


@njit(nogil=True, cache=True)
def copy_states(source: Any, at: Any, states: Any, to: Any, before: Any, has_scalar: Any, wide: Any) -> None:
    """A row's states into the array of states: without the number that the record has, which comes after `before`."""
    copy_row(source, at, states, to, before)
    if has_scalar:
        copy_row(source, at + before + ONE, states, to + before, wide)


@njit(nogil=True, cache=True)
def scatter(
    values_CD: Any,
    meta: Any,
    scalars: Any,
    states_CS: Any,
    wide: Any,
    slots_N: Any,
    values_ND: Any,
    states_NS: Any,
    counts_N: Any,
    last_seen_N: Any,
    flags_N: Any,
) -> None:
    values, values_in = values_CD.reshape(-1), values_ND.reshape(-1)
    states, states_in = states_CS.reshape(-1), states_NS.reshape(-1)
    width, own, state_width = (
        np.uint64(values_CD.shape[1]),
        np.uint64(states_CS.shape[1]),
        np.uint64(states_NS.shape[1]),
    )
    wide_width = np.uint64(wide)
    before = own - wide_width if own < state_width else own
    for n in range(len(slots_N)):
        slot, source = np.uint64(slots_N[n]), np.uint64(n)
        copy_row(values_in, source * width, values, slot * width, width)
        copy_states(states_in, source * state_width, states, slot * own, before, own < state_width, wide_width)
        scalars[slot, SCALAR] = states_NS[source, before] if own < state_width else np.float32(0)
        meta[slot, COUNT], meta[slot, LAST_SEEN], meta[slot, FLAGS] = counts_N[n], last_seen_N[n], flags_N[n]


@njit(nogil=True, cache=True)
def create(
    values_CD: Any,
    meta: Any,
    states_CS: Any,
    slots_N: Any,
    features_N: Any,
    ids_N: Any,
    mixed_seed: Any,
    factor: Any,
) -> None:
    values, width = values_CD.reshape(-1), np.uint64(values_CD.shape[1])
    is_float = values_CD.itemsize == 4
    row_D = np.empty(values_CD.shape[1], np.float32)
    for n in range(len(slots_N)):
        slot = np.uint64(slots_N[n])
        if is_float:
            first_value_row(values_CD[slot], mix_key(features_N[n], ids_N[n]), mixed_seed, factor)
        else:
            first_value_row(row_D, mix_key(features_N[n], ids_N[n]), mixed_seed, factor)
            copy_row(row_D, np.uint64(0), values, slot * width, width)
        for s in range(states_CS.shape[1]):
            states_CS[slot, s] = 0
        meta[slot, COUNT], meta[slot, LAST_SEEN], meta[slot, FLAGS], meta[slot, 3] = 0, 0, NEEDS_SPILL, 0


@njit(nogil=True, cache=True)
def clear_dirty(meta: Any, slots_N: Any) -> Any:
    touched_M = np.empty(len(slots_N), np.int64)
    num = 0
    records = meta.reshape(-1)
    for n in range(len(slots_N)):
        if n + AHEAD < len(slots_N):
            prefetch(records, np.uint64(slots_N[n + AHEAD]) * U4)
        slot = np.uint64(slots_N[n])
        if meta[slot, FLAGS] & DIRTY:
            meta[slot, FLAGS] &= ~DIRTY
            touched_M[num] = slot
            num += 1
    return touched_M[:num]


@njit(nogil=True, cache=True)
def set_flags(meta: Any, slots_N: Any, flags: Any) -> None:
    for n in range(len(slots_N)):
        meta[slots_N[n], FLAGS] = flags
