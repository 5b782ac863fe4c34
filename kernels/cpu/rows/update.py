"""The update: gradients summed by key, one optimizer step a row; compiled for each dimension, optimizer and dtype.

The dimension is a constant, so that a row of up to 64 numbers is a few registers and no loop.
"""

# K keys of the batch, U unique ones, B rows of gradients, N some rows, D dimension
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.kernels.cpu.index.buckets import (
    FEATURE_AT_U,
    FEATURES_U,
    ID_AT_U,
    SCORE_AT_U,
    WORDS_U,
    W,
    with_priority,
)
from springtide.kernels.cpu.intrinsics.instructions import prefetch
from springtide.kernels.cpu.intrinsics.simd import horizontal_sum, load, num_lanes, prefetch_lanes, store, zeros
from springtide.kernels.cpu.intrinsics.specialize import named_specialization
from springtide.kernels.cpu.rows.optimizers import CPU_KERNELS
from springtide.kernels.cpu.rows.rows import DIRTY, FLAGS, LAST_SEEN, NEEDS_SPILL, SCALAR, bits_of, store_rounded
from springtide.kernels.njit import njit
from springtide.kernels.row_optimizers import OPTIMIZERS

AHEAD = 16  # rows asked for before their turn
U0, U1, U2, U4, U8 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(8)
AHEAD_U = np.uint64(AHEAD)
LAST_SEEN_U, FLAGS_U, SCALAR_U = np.uint64(LAST_SEEN), np.uint64(FLAGS), np.uint64(SCALAR)


class RowArrays(NamedTuple):
    """The arrays of rows, ravelled."""

    values: Any
    meta: Any
    scalars: Any
    states: Any
    state_stride: Any  # numbers of `states` a row has: the optimizer's, then the wide columns


class UpdateKeyArrays(NamedTuple):
    """Where the keys and scores of rows are."""

    buckets: Any
    overflow: Any
    num_slots: Any


class GradientBatch(NamedTuple):
    """Gradients to learn: occurrences by key, and gradients, ravelled; bags_K and scales_K may be None."""

    slots_U: Any
    order_K: Any
    offsets_U1: Any
    last_seen_U: Any
    grads: Any
    bags_K: Any
    scales_K: Any


@njit(nogil=True, cache=True)
def key_hash_of(words: Any, features: Any, features_O: Any, ids_O: Any, num_slots: Any, slot: Any) -> Any:
    """The key hash in a slot."""
    if slot < num_slots:
        bucket, lane = slot // W, slot % W
        feature = features[bucket * FEATURES_U + FEATURE_AT_U + lane]
        return hash_key(feature, np.int64(words[bucket * WORDS_U + ID_AT_U + lane]))
    return hash_key(features_O[slot - num_slots], ids_O[slot - num_slots])


@njit(nogil=True, cache=True)
def set_priority(words: Any, scores_O: Any, num_slots: Any, slot: Any, priority: Any) -> None:
    if slot < num_slots:
        at = (slot // W) * WORDS_U + SCORE_AT_U + slot % W
        words[at] = np.uint64(with_priority(words[at], priority))
    else:
        scores_O[slot - num_slots] = with_priority(scores_O[slot - num_slots], priority)


@njit(nogil=True, cache=True)
def gradient_row_of(order_K: Any, bags_K: Any, k: Any) -> Any:
    """The row of the gradients that the k-th occurrence in the order of keys takes."""
    if bags_K is None:
        return np.uint64(order_K[k])
    return np.uint64(bags_K[np.uint64(order_K[k])])


@njit(nogil=True, cache=True)
def scaled(g: Any, order_K: Any, scales_K: Any, k: Any) -> Any:
    if scales_K is None:
        return g
    return g * scales_K[np.uint64(order_K[k])]


@njit(nogil=True, cache=True)
def gradient(
    blank: Any, grads: Any, order_K: Any, bags_K: Any, scales_K: Any, k: Any, width: Any, d: Any, rest: Any
) -> Any:
    """Numbers d and on of that occurrence's gradient; asks for one that comes some turns later."""
    if k + AHEAD_U < np.uint64(len(order_K)):
        ahead = gradient_row_of(order_K, bags_K, k + AHEAD_U) * width + d
        prefetch_lanes(blank, grads, ahead)
    at = gradient_row_of(order_K, bags_K, k) * width + d
    return scaled(load(blank, grads, at, rest), order_K, scales_K, k)


@cache
def compiled_update(dim: int, name: str, is_half: bool, count_priority: bool) -> Any:
    """The update for these: see kernels/ops.py."""
    num = num_lanes(dim)
    num_pieces, even, width, lanes = -(-dim // num), dim % num == 0, np.uint64(dim), np.uint64(num)
    kind, (begin, move) = OPTIMIZERS[name], CPU_KERNELS[name]
    in_record, has_scalar, sees_new_rows = kind.is_in_record(dim), kind.scalars > 0, kind.sees_new_rows
    own_width = 8 if in_record else kind.vectors * dim
    state_at, last_at = np.uint64(SCALAR if in_record else 0), np.uint64(max(0, kind.vectors - 1) * dim)
    num_state_pieces = -(-own_width // num)
    divisor = np.float32(dim)
    is_keyed = is_half or count_priority

    def update(
        rows: Any, keys: Any, batch: Any, c: Any, corrections: Any, mixed_seed: Any, start: Any, stop: Any
    ) -> Any:
        blank = zeros(num)
        # arrays are taken out of their tuples once: each time costs two atomic operations
        values, meta, scalars = rows.values, rows.meta, rows.scalars
        states = scalars if in_record else rows.states
        state_width = U8 if in_record else rows.state_stride
        words, features, num_slots = keys.buckets.words, keys.buckets.features, keys.num_slots
        features_O, ids_O, scores_O = keys.overflow.features_O, keys.overflow.ids_O, keys.overflow.scores_O
        slots_U, order_K, offsets_U1, last_seen_U = batch.slots_U, batch.order_K, batch.offsets_U1, batch.last_seen_U
        grads, bags_K, scales_K = batch.grads, batch.bags_K, batch.scales_K
        fresh_N = np.empty(stop - start, np.int64)
        num_fresh, num_refused = 0, 0
        sum_D = np.empty(num_pieces * num, np.float32)
        for u in range(start, stop):
            if u + AHEAD < stop and slots_U[u + AHEAD] >= 0:
                ahead = np.uint64(slots_U[u + AHEAD])
                prefetch(meta, ahead * U4)
                for piece in range(num_pieces):
                    prefetch_lanes(blank, values, ahead * width + np.uint64(piece) * lanes)
                for piece in range(num_state_pieces):
                    prefetch_lanes(blank, states, ahead * state_width + np.uint64(piece) * lanes)
                if is_keyed and ahead < num_slots:
                    base, lane = (ahead // W) * WORDS_U, ahead % W
                    if is_half:
                        prefetch(words, base)
                        prefetch(words, base + ID_AT_U + lane)
                    if count_priority:
                        prefetch(words, base + SCORE_AT_U + lane)
            if slots_U[u] < 0 or offsets_U1[u] == offsets_U1[u + 1]:
                continue
            slot = np.uint64(slots_U[u])
            about, scalar = slot * U4, slot * U8 + SCALAR_U
            first, last = np.uint64(offsets_U1[u]), np.uint64(offsets_U1[u + 1])
            lane_squares = blank
            for piece in range(num_pieces):
                d = np.uint64(piece) * lanes
                rest = lanes if even else min(lanes, width - d)
                g = gradient(blank, grads, order_K, bags_K, scales_K, first, width, d, rest)
                for k in range(first + U1, last):
                    g = g + gradient(blank, grads, order_K, bags_K, scales_K, np.uint64(k), width, d, rest)
                store(sum_D, d, lanes, g)
                lane_squares = lane_squares + g * g
            squares = horizontal_sum(lane_squares)
            count = meta[about] + np.int64(last - first)
            if np.isfinite(squares):
                factor = np.float32(1)
                if c.clip_norm > 0 and np.sqrt(squares) > c.clip_norm:
                    factor = c.clip_norm / np.sqrt(squares)
                    lane_squares = blank
                    for piece in range(num_pieces):
                        g = load(blank, sum_D, np.uint64(piece) * lanes, lanes) * factor
                        lane_squares = lane_squares + g * g
                    squares = horizontal_sum(lane_squares)
                bits = U0
                if is_half:
                    key_hash = key_hash_of(words, features, features_O, ids_O, num_slots, slot)
                    bits = bits_of(key_hash, mixed_seed, np.uint64(count))
                state, rate, correction2 = begin(c, corrections, scalars[scalar], squares / divisor)
                if has_scalar:
                    scalars[scalar] = state
                is_new = False
                if sees_new_rows:
                    lane_squares = blank
                    for piece in range(num_pieces):
                        d = np.uint64(piece) * lanes
                        rest = lanes if even else min(lanes, width - d)
                        lane_squares = lane_squares + load(blank, states, slot * state_width + last_at + d, rest)
                    is_new = horizontal_sum(lane_squares) == 0
                for piece in range(num_pieces):
                    d = np.uint64(piece) * lanes
                    rest = lanes if even else min(lanes, width - d)
                    at, state_from = slot * width + d, slot * state_width + state_at + d
                    g = load(blank, sum_D, d, lanes) * factor
                    row = load(blank, values, at, rest) * c.keep
                    row = move(row, g, states, state_from, width, rest, c, rate, correction2, is_new)
                    if is_half:
                        store_rounded(values, at, rest, row, d, bits)
                    else:
                        store(values, at, rest, row)
            else:
                num_refused += 1
            meta[about] = count
            meta[about + LAST_SEEN_U] = max(meta[about + LAST_SEEN_U], last_seen_U[u])
            flags = meta[about + FLAGS_U]
            if flags & DIRTY == 0:
                fresh_N[num_fresh] = np.int64(slot)
                num_fresh += 1
            meta[about + FLAGS_U] = flags | DIRTY | NEEDS_SPILL
            if count_priority:
                set_priority(words, scores_O, num_slots, slot, count)
        return fresh_N[:num_fresh], num_refused

    return njit(nogil=True, cache=True)(named_specialization(update, dim, name, is_half, count_priority))
