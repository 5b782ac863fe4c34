"""Vectors of a row's numbers: as many as are meant are read and written, and no byte beside them."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from springtide.kernels.cpu.intrinsics.simd import horizontal_sum, load, num_lanes, store, zeros

DIMS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129]


def copying(dim: int, constant: bool) -> Any:
    """A kernel that copies one row between arrays in pieces, as the others do, its length a constant or not."""
    num, width, at = num_lanes(dim), np.uint64(dim), np.uint64(1)
    num_pieces, lanes = -(-dim // num), np.uint64(num)

    @njit
    def copy(to: Any, source: Any, runtime_width: Any) -> None:
        whole = width if constant else runtime_width
        for piece in range(num_pieces):
            d = np.uint64(piece) * lanes
            rest = min(lanes, whole - d)
            store(to, at + d, rest, load(zeros(num), source, at + d, rest))

    return copy


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_nothing_beside_a_row_is_written(dim: int, constant: bool) -> None:
    floats = np.arange(1, 190, dtype=np.float32)
    halves = (floats.view(np.uint32) >> 16).astype(np.uint16)
    copy = copying(dim, constant)
    for source in (floats, halves):
        for kind, values in ((np.float32, floats), (np.uint16, halves)):
            to = np.full(189, 200, kind)
            copy(to, source, np.uint64(dim))
            expected = np.full(189, 200, kind)
            expected[1 : 1 + dim] = values[1 : 1 + dim]
            np.testing.assert_array_equal(to, expected)


@pytest.mark.parametrize("dim", [dim for dim in DIMS if dim <= 64])
def test_what_lies_beyond_a_row_counts_as_zero(dim: int) -> None:
    num = num_lanes(dim)

    @njit
    def summed(source: Any, rest: Any) -> Any:
        return horizontal_sum(load(zeros(num), source, np.uint64(0), rest))

    source = np.full(64, np.nan, np.float32)
    source[:dim] = np.arange(dim)
    assert summed(source, np.uint64(dim)) == sum(range(dim))
