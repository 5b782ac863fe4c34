"""The gather: a batch's rows, one a key; compiled for each dimension."""

# K keys of the batch, U unique ones
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.intrinsics.simd import load, num_lanes, prefetch_lanes, store, zeros
from springtide.kernels.cpu.intrinsics.specialize import named_specialization

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
