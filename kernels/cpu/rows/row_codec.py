"""Rows as the bytes that travel between ranks: chosen, encoded and laid beside other numbers in one pass, and back.

A row of bytes is a multiple of 4 long: values, int8 with a scale after them, then float32 numbers as they are. Each
function has the bits of its plain form in embeddings/sharding/row_format.py.
"""

# U rows, N of them that travel, D dimension, S other numbers of a row, W words of 4 bytes
from typing import Any

import numpy as np

from springtide.kernels.cpu.rows.rows import ELEMENT, MIX_1, MIX_2
from springtide.kernels.njit import njit

LARGEST, TINY = np.float32(127), np.float32(2.0**-126)
ELEMENT_32, MIX_1_32, MIX_2_32 = np.uint32(ELEMENT), np.uint32(MIX_1), np.uint32(MIX_2)
LARGEST_BYTE = np.int32(127)
S8, S15, S16 = np.uint32(8), np.uint32(15), np.uint32(16)
UNIT = np.float32(2.0**-24)
ABSOLUTE, INFINITE = np.uint32(0x7FFF_FFFF), np.uint32(0x7F80_0000)
ONE, HALF, QUIET_NAN = np.uint32(1), np.uint32(0x7FFF), np.uint16(0x7FC0)


@njit(nogil=True, cache=True)
def pack_float32(rows_UX: Any, order_N: Any, dim: Any, numbers_US: Any, words_NW: Any) -> None:
    """The first `dim` numbers of rows order_N, and other numbers of the same rows, both float32."""
    for n in range(len(order_N)):
        u = order_N[n]
        for d in range(dim):
            words_NW[n, d] = rows_UX[u, d]
        _pack_numbers(numbers_US, u, words_NW, n, dim)


@njit(nogil=True, cache=True)
def pack_bfloat16(
    bits_UX: Any, order_N: Any, dim: Any, numbers_US: Any, words_NW: Any, halves_NH: Any
) -> None:  # bits_UX: the rows as uint32; halves_NH: the words as uint16
    """Pack rows with values rounded to the nearest bfloat16."""
    num_words = (dim + 1) // 2
    for n in range(len(order_N)):
        u = order_N[n]
        if dim % 2:
            halves_NH[n, dim] = 0
        for d in range(dim):
            bits = bits_UX[u, d]
            rounded = np.uint32(bits + HALF + ((bits >> S16) & ONE)) >> S16
            halves_NH[n, d] = QUIET_NAN if (bits & ABSOLUTE) > INFINITE else np.uint16(rounded)
        _pack_numbers(numbers_US, u, words_NW, n, num_words)


@njit(nogil=True, cache=True)
def pack_int8(
    rows_UX: Any,
    bits_UX: Any,
    order_N: Any,
    dim: Any,
    noise: Any,
    is_rounded_up_or_down: Any,
    numbers_US: Any,
    words_NW: Any,
    bytes_NB: Any,
) -> None:
    """Pack rows with values as int8 of a scale a row; `noise`: 64 bits that stochastic rounding depends on.

    bits_UX: the rows as uint32, whose magnitudes are ordered like the numbers', and have no NaN to ask for.
    """
    scale_at = (dim + 3) // 4
    low, high = np.uint32(noise), np.uint32(noise >> np.uint64(32))
    for n in range(len(order_N)):
        u = order_N[n]
        largest = np.uint32(0)
        for d in range(dim):
            largest = np.uint32(max(largest, bits_UX[u, d] & ABSOLUTE))
        for d in range(dim, 4 * scale_at):
            bytes_NB[n, d] = 0
        scale = np.uint32(largest).view(np.float32) / LARGEST
        if largest >= INFINITE:
            scale = np.float32(np.nan)
            for d in range(dim):
                bytes_NB[n, d] = 0
        elif is_rounded_up_or_down:
            divisor, first = max(scale, TINY), np.uint32(n * dim)
            for d in range(dim):
                x = np.uint32(np.uint32(first + np.uint32(d)) * ELEMENT_32 + low) ^ high
                x = np.uint32((x ^ (x >> S16)) * MIX_1_32)
                x = np.uint32((x ^ (x >> S15)) * MIX_2_32)
                up = np.float32(np.int32(x >> S8)) * UNIT
                bytes_NB[n, d] = _byte_of(np.floor(rows_UX[u, d] / divisor + up))
        else:
            divisor = max(scale, TINY)
            for d in range(dim):
                bytes_NB[n, d] = _byte_of(np.rint(rows_UX[u, d] / divisor))
        words_NW[n, scale_at] = scale
        _pack_numbers(numbers_US, u, words_NW, n, scale_at + 1)


@njit(nogil=True, cache=True)
def unpack_float32(words_NW: Any, order_N: Any, dim: Any, rows_UX: Any, numbers_US: Any) -> None:
    """Write what `pack_float32` made to rows order_N."""
    for n in range(len(order_N)):
        u = order_N[n]
        for d in range(dim):
            rows_UX[u, d] = words_NW[n, d]
        _unpack_numbers(words_NW, n, dim, numbers_US, u)


@njit(nogil=True, cache=True)
def unpack_bfloat16(
    words_NW: Any, halves_NH: Any, order_N: Any, dim: Any, bits_UX: Any, numbers_US: Any
) -> None:  # bits_UX: the rows as uint32
    """Write what `pack_bfloat16` made to rows order_N."""
    num_words = (dim + 1) // 2
    for n in range(len(order_N)):
        u = order_N[n]
        for d in range(dim):
            bits_UX[u, d] = np.uint32(halves_NH[n, d]) << S16
        _unpack_numbers(words_NW, n, num_words, numbers_US, u)


@njit(nogil=True, cache=True)
def unpack_int8(words_NW: Any, bytes_NB: Any, order_N: Any, dim: Any, rows_UX: Any, numbers_US: Any) -> None:
    """Write what `pack_int8` made to rows order_N; NaN where the scale is not finite."""
    scale_at = (dim + 3) // 4
    for n in range(len(order_N)):
        u = order_N[n]
        scale = words_NW[n, scale_at]
        if not np.isfinite(scale):
            scale = np.float32(np.nan)
        for d in range(dim):
            rows_UX[u, d] = np.float32(bytes_NB[n, d]) * scale
        _unpack_numbers(words_NW, n, scale_at + 1, numbers_US, u)


@njit(nogil=True, cache=True)
def _byte_of(rounded: Any) -> Any:
    whole = np.int32(rounded)  # from -128 to 128
    return np.int8(min(max(whole, -LARGEST_BYTE), LARGEST_BYTE))


@njit(nogil=True, cache=True)
def _pack_numbers(numbers_US: Any, u: Any, words_NW: Any, n: Any, first: Any) -> None:
    for s in range(numbers_US.shape[1]):
        words_NW[n, first + s] = numbers_US[u, s]


@njit(nogil=True, cache=True)
def _unpack_numbers(words_NW: Any, n: Any, first: Any, numbers_US: Any, u: Any) -> None:
    for s in range(numbers_US.shape[1]):
        numbers_US[u, s] = words_NW[n, first + s]
