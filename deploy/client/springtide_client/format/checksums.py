"""Checksums of bytes that stand end to end, from the checksums of the parts: crc32 is linear.

After zlib's crc32_combine: the first part's checksum times x to the number of the second's bits, modulo the polynomial.
"""

from collections.abc import Iterable
from functools import cache

POLYNOMIAL = 0xEDB88320
ONE, X = 1 << 31, 1 << 30  # bits are reflected: the highest is the constant term


def combine_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """The crc32 of all parts in a row, each given by its own crc32 and its length in bytes."""
    crc = 0
    for part, num_bytes in parts:
        crc = _times(_power(num_bytes), crc) ^ part
    return crc


def _power(num_bytes: int) -> int:
    """x to the 8 * num_bytes."""
    product, exponent, square = ONE, num_bytes, 3
    while exponent:
        if exponent & 1:
            product = _times(_squared(square), product)
        exponent, square = exponent >> 1, square + 1
    return product


@cache
def _squared(times: int) -> int:
    """x, squared so many times."""
    if times == 0:
        return X
    half = _squared(times - 1)
    return _times(half, half)


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ POLYNOMIAL if b & 1 else b >> 1
    return product
