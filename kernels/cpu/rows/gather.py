"""The gather: a batch's rows, one a key, or pooled into one a bag; compiled for each dimension."""

# K keys of the batch, U unique ones, B bags
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from springtide.kernels.cpu.intrinsics.simd import (
    call,
    load,
    num_lanes,
    pointer_and_mask,
    prefetch_lanes,
    splat,
    store,
    zeros,
)
from springtide.kernels.cpu.intrinsics.specialize import named_specialization
from springtide.kernels.njit import njit

AHEAD = 24  # rows asked for before their turn


@cache
def compiled_gather(dim: int) -> Any:
    """The gather for this dimension: rows slots_U[inverse_K] of values into out, NaN where the slot is negative."""
    num = num_lanes(dim)
    num_pieces, even, width, lanes = -(-dim // num), dim % num == 0, np.uint64(dim), np.uint64(num)

    def gather(values: Any, slots_U: Any, inverse_K: Any, out: Any) -> None:
        blank = zeros(num)
        num_keys = len(inverse_K)
        for k in range(num_keys):
            if k + AHEAD < num_keys:
                slot = slots_U[np.uint64(inverse_K[k + AHEAD])]
                if slot >= 0:
                    for piece in range(num_pieces):
                        prefetch_lanes(blank, values, np.uint64(slot) * width + np.uint64(piece) * lanes)
            slot = slots_U[np.uint64(inverse_K[k])]
            for piece in range(num_pieces):
                d = np.uint64(piece) * lanes
                rest = lanes if even else min(lanes, width - d)
                row = blank + np.float32(np.nan)
                if slot >= 0:
                    row = load(blank, values, np.uint64(slot) * width + d, rest)
                store(out, np.uint64(k) * width + d, rest, row)

    return njit(nogil=True, cache=True)(named_specialization(gather, dim))


MODES = ("sum", "mean", "max")
NO_KEY = np.int64(-1)


@intrinsic
def keep_greater(typingctx: Any, best: Any, row: Any, winners: Any, index: Any, rest: Any, k: Any) -> Any:
    """The greater of each pair, the first where they are alike; k to winners[index] and on where the second won.

    NaN in `best` is less than anything.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        best_lanes, row_lanes, winners_array, at, remaining, position = arguments
        num = best.num
        pointer, _, align, mask = pointer_and_mask(context, builder, winners, winners_array, at, remaining, num)
        won = builder.fcmp_unordered(">", row_lanes, best_lanes)
        positions = splat(builder, position, num)
        arguments = [positions, pointer, align, builder.and_(won, mask)]
        call(builder, f"llvm.masked.store.v{num}i64.p0", ir.VoidType(), arguments)
        return builder.select(won, row_lanes, best_lanes)

    return best(best, row, winners, types.uint64, types.uint64, types.int64), generate


@cache
def compiled_pool(dim: int, mode: str) -> Any:
    """Bags offsets_B1[b]..offsets_B1[b + 1] of the keys into out; with "max" the winners' positions into winners."""
    num = num_lanes(dim)
    num_pieces, even, width, lanes = -(-dim // num), dim % num == 0, np.uint64(dim), np.uint64(num)
    is_mean, is_max = mode == "mean", mode == "max"

    def pool(values: Any, slots_U: Any, inverse_K: Any, offsets_B1: Any, out: Any, winners: Any) -> None:
        blank = zeros(num)
        num_keys = len(inverse_K)
        for b in range(len(offsets_B1) - 1):
            for piece in range(num_pieces):
                d = np.uint64(piece) * lanes
                rest = lanes if even else min(lanes, width - d)
                to = np.uint64(b) * width + d
                pooled = blank + np.float32(np.nan) if is_max else blank
                num_rows = 0
                for k in range(offsets_B1[b], offsets_B1[b + 1]):
                    if k + AHEAD < num_keys:
                        ahead = slots_U[np.uint64(inverse_K[k + AHEAD])]
                        if ahead >= 0:
                            prefetch_lanes(blank, values, np.uint64(ahead) * width + d)
                    slot = slots_U[np.uint64(inverse_K[k])]
                    if slot < 0:
                        continue
                    num_rows += 1
                    row = load(blank, values, np.uint64(slot) * width + d, rest)
                    if is_max:
                        pooled = keep_greater(pooled, row, winners, to, rest, k)
                    else:
                        pooled = pooled + row
                if num_rows == 0:
                    pooled = blank
                    if is_max:
                        for at in range(to, to + rest):
                            winners[at] = NO_KEY
                elif is_mean:
                    pooled = pooled / np.float32(num_rows)
                store(out, to, rest, pooled)

    return njit(nogil=True, cache=True)(named_specialization(pool, dim, mode))


@cache
def compiled_scaled_sum(dim: int) -> Any:
    """Bags offsets_B1[b]..offsets_B1[b + 1] of the keys into out, each row times the factor of its key."""
    num = num_lanes(dim)
    num_pieces, even, width, lanes = -(-dim // num), dim % num == 0, np.uint64(dim), np.uint64(num)

    def scaled_sum(values: Any, slots_U: Any, inverse_K: Any, offsets_B1: Any, scales_K: Any, out: Any) -> None:
        blank = zeros(num)
        num_keys = len(inverse_K)
        for b in range(len(offsets_B1) - 1):
            for piece in range(num_pieces):
                d = np.uint64(piece) * lanes
                rest = lanes if even else min(lanes, width - d)
                summed = blank
                for k in range(offsets_B1[b], offsets_B1[b + 1]):
                    if k + AHEAD < num_keys:
                        ahead = slots_U[np.uint64(inverse_K[k + AHEAD])]
                        if ahead >= 0:
                            prefetch_lanes(blank, values, np.uint64(ahead) * width + d)
                    slot = slots_U[np.uint64(inverse_K[k])]
                    if slot >= 0:
                        row = load(blank, values, np.uint64(slot) * width + d, rest)
                        summed = summed + row * scales_K[np.uint64(k)]
                store(out, np.uint64(b) * width + d, rest, summed)

    return njit(nogil=True, cache=True)(named_specialization(scaled_sum, dim))
