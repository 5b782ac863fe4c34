"""Rows in and out of a store, with all their columns; how they lie there is in store.py."""

# N some rows, D dimension, S state width
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from springtide.kernels.cpu.hashing import GOLDEN, first_value_row, hash_key, mix64
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.intrinsics.simd import (
    INT32,
    constant_lanes,
    lane_numbers,
    load,
    splat,
    store,
    store_masked,
    zeros,
)
from springtide.kernels.njit import njit

ELEMENT, MIX_1, MIX_2 = 0x9E37_79B9, 0x7FEB_352D, 0x846C_A68B  # the last two: lowbias32 (Wellons 2018)


@njit(nogil=True, cache=True)
def bits_of(key_hash: Any, mixed_seed: Any, count: Any) -> Any:
    """The 64 bits of a row and step, from which each element's are made."""
    return mix64((key_hash ^ mixed_seed) + GOLDEN * count)


@intrinsic
def store_rounded(typingctx: Any, array: Any, index: Any, rest: Any, lanes: Any, element: Any, bits: Any) -> Any:
    """Lanes to array[index] and on, the first of them being this element of the row; lanes.store rounds to nearest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, rest, value, element, bits = arguments
        num = lanes.num
        low, high = builder.trunc(bits, INT32), builder.trunc(builder.lshr(bits, bits.type(32)), INT32)
        elements = builder.add(lane_numbers(num), splat(builder, builder.trunc(element, INT32), num))
        x = builder.add(builder.mul(elements, constant_lanes(num, ELEMENT)), splat(builder, low, num))
        x = builder.xor(x, splat(builder, high, num))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant_lanes(num, 16))), constant_lanes(num, MIX_1))
        x = builder.mul(builder.xor(x, builder.lshr(x, constant_lanes(num, 15))), constant_lanes(num, MIX_2))
        # a NaN here ends in zeros, being computed or read from bfloat16, so that the sum does not carry over
        up = builder.add(builder.bitcast(value, ir.VectorType(INT32, num)), builder.lshr(x, constant_lanes(num, 16)))
        store_masked(context, builder, signature.args[0], array, index, rest, up)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64, lanes, types.uint64, types.uint64), generate


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
            first_value_row(values_CD[slot], hash_key(features_N[n], ids_N[n]), mixed_seed, factor)
        else:
            first_value_row(row_D, hash_key(features_N[n], ids_N[n]), mixed_seed, factor)
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
