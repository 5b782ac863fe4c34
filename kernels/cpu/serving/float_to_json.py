"""float32 numbers as JSON: few digits, which read back as the same float32, whichever width they are read in.

A float32 owns all decimals nearer to it than half the way to its neighbors. Scaled to nine digits in float64 (its
error, below 4e-7 of a unit, is kept away from the borders by MARGIN) the round decimals in there are tried first.
"""

# R rows, D dimension
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.instructions import (
    bits_of_float32,
    float64_from_bits,
    leading_zeros,
    read_uint8,
    write_uint8,
    write_uint64,
)
from springtide.kernels.cpu.intrinsics.specialize import holding_gil
from springtide.kernels.njit import njit

# the most bytes of one number with its comma, and how far beyond the end a word may be written
NUMBER_BYTES, SLACK_BYTES = 18, 16
MARGIN = 1e-6

FIRST_POWER, LAST_POWER = -46, 55
POWERS = np.array([float(f"1e{power}") for power in range(FIRST_POWER, LAST_POWER)])
# by the exponent's bits: a power of ten that is not above the number; the next one may not be either
LOWER_POWER = np.array([-45] + [int(f"{2.0 ** (e - 127):e}".partition("e")[2]) for e in range(1, 255)], np.int64)
ZEROS = np.uint64(0x3030_3030_3030_3030)
POINT_AND_ZEROS = np.uint64(0x3030_3030_3030_2E30)  # "0.000000"
NULL = np.uint64(0x6C6C_756E)  # "null"
MINUS, POINT, ZERO, PLUS, SMALL_E, COMMA, OPEN, CLOSE = (np.uint8(ord(text)) for text in "-.0+e,[]")
S3, S8, S10, S16, S20, S29, S32, S52 = (np.uint64(bits) for bits in (3, 8, 10, 16, 20, 29, 32, 52))
LOWEST_PLAIN, HIGHEST_PLAIN = -5, 9  # outside: 1.5e-07


@njit(nogil=True, cache=True)
def eight_digits(number: Any) -> Any:
    """The digits of a number below 10^8 as eight bytes 0 to 9, the first one lowest."""
    four_by_four = (number // np.uint64(10_000)) | (number % np.uint64(10_000)) << S32
    hundreds = ((four_by_four * np.uint64(10_486)) >> S20) & np.uint64(0x0000_007F_0000_007F)
    twos = hundreds | (four_by_four - hundreds * np.uint64(100)) << S16
    tens = ((twos * np.uint64(103)) >> S10) & np.uint64(0x000F_000F_000F_000F)
    return tens | (twos - tens * np.uint64(10)) << S8


@njit(nogil=True, cache=True)
def nine_digits(bits: Any) -> Any:
    """Of a positive, finite float32: the decimal to write, from 10^8 to 10^9 - 1, and the power of its first digit."""
    exponent = np.uint64(bits >> np.uint32(23))
    fraction = np.uint64(bits & np.uint32(0x7F_FFFF))
    power = LOWER_POWER[exponent]
    if exponent == 0:  # without the hidden bit
        number = np.float64(fraction) * 2.0**-149
        above = 2.0**-150
        while number >= POWERS[np.uint64(power + 1 - FIRST_POWER)]:
            power += 1
    else:
        number = float64_from_bits((exponent + np.uint64(896)) << S52 | fraction << S29)
        above = float64_from_bits((exponent + np.uint64(872)) << S52)
        power += np.int64(number >= POWERS[np.uint64(power + 1 - FIRST_POWER)])
    scale = POWERS[np.uint64(8 - power - FIRST_POWER)]
    scaled, above = number * scale, above * scale
    below = above * (0.5 if fraction == 0 else 1.0)
    low, high = scaled - below + MARGIN, scaled + above - MARGIN
    decimal = np.rint(scaled)
    tens, hundreds = np.rint(scaled * 0.1) * 10.0, np.rint(scaled * 0.01) * 100.0
    thousands = np.rint(scaled * 0.001) * 1000.0
    decimal = tens if (low < tens) & (tens < high) else decimal
    decimal = hundreds if (low < hundreds) & (hundreds < high) else decimal
    decimal = thousands if (low < thousands) & (thousands < high) else decimal
    if decimal >= 1e9:
        return np.uint64(100_000_000), power + 1
    return np.uint64(np.int64(decimal)), power


@njit(nogil=True, cache=True)
def write_number(at: Any, number: Any) -> Any:
    """Write one number from the address `at` on; returns where it ends."""
    bits = bits_of_float32(number)
    if bits >= np.uint32(0xFF80_0000) or (np.uint32(0x7F80_0000) <= bits < np.uint32(0x8000_0000)):
        write_uint64(at, NULL)
        return at + 4
    write_uint8(at, MINUS)
    at += np.int64(bits >> np.uint32(31))
    bits &= np.uint32(0x7FFF_FFFF)
    if bits == 0:
        write_uint64(at, POINT_AND_ZEROS)
        return at + 3
    decimal, power = nine_digits(bits)
    first = decimal // np.uint64(100_000_000)
    others = eight_digits(decimal - first * np.uint64(100_000_000))
    num_digits = 9 - np.int64(leading_zeros(others) >> S3)
    if (power >= LOWEST_PLAIN) & (power < 0):
        write_uint64(at, POINT_AND_ZEROS)
        at += 1 - power
        write_uint8(at, ZERO + np.uint8(first))
        write_uint64(at + 1, others | ZEROS)
        return at + num_digits
    write_uint8(at, ZERO + np.uint8(first))
    write_uint64(at + 1, others | ZEROS)
    if (power >= 0) & (power < HIGHEST_PLAIN):
        if num_digits <= power + 1:  # "1500.0"
            write_uint8(at + power + 1, POINT)
            write_uint8(at + power + 2, ZERO)
            return at + power + 3
        write_decimal_point(at, power + 1, num_digits)
        return at + num_digits + 1
    if num_digits > 1:
        write_decimal_point(at, 1, num_digits)
        at += 1
    at += num_digits
    write_uint8(at, SMALL_E)
    write_uint8(at + 1, MINUS if power < 0 else PLUS)
    write_uint8(at + 2, ZERO + np.uint8(abs(power) // 10))
    write_uint8(at + 3, ZERO + np.uint8(abs(power) % 10))
    return at + 4


@njit(nogil=True, cache=True)
def write_decimal_point(at: Any, num_before: Any, num_digits: Any) -> None:
    """Make room for a point among digits."""
    for digit in range(num_digits - 1, num_before - 1, -1):
        write_uint8(at + digit + 1, read_uint8(at, digit))
    write_uint8(at + num_before, POINT)


@njit(nogil=True, cache=True)
def write_rows(rows_RD: Any, status_R: Any, out: Any) -> Any:
    """Write the rows as a JSON array of arrays, null where the status is not 0; returns how long it is.

    `out` has NUMBER_BYTES * D + 5 bytes a row and SLACK_BYTES more.
    """
    start = out.ctypes.data
    dim = rows_RD.shape[1]
    at = start
    write_uint8(at, OPEN)
    at += 1
    for r in range(len(status_R)):
        if status_R[r] != 0:
            write_uint64(at, NULL)
            at += 4
        else:
            write_uint8(at, OPEN)
            at += 1
            for d in range(dim):
                at = write_number(at, rows_RD[r, d])
                write_uint8(at, COMMA)
                at += 1
            at -= np.int64(dim > 0)
            write_uint8(at, CLOSE)
            at += 1
        write_uint8(at, COMMA)
        at += 1
    at -= np.int64(len(status_R) > 0)
    write_uint8(at, CLOSE)
    return at + 1 - start


write_rows_holding_gil = holding_gil(write_rows)
