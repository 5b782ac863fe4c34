"""The crc32 of concatenated bytes, computed from the checksums of the parts, because crc32 is linear.

The method of zlib's crc32_combine: multiply the first part's checksum by x to the number of bits of the second part,
modulo the polynomial, and add the second part's checksum. Also the checksum of a file.
"""

import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

POLYNOMIAL = 0xEDB88320
ONE, X = 1 << 31, 1 << 30  # bits are reflected: the highest is the constant term
READ_BYTES = 1 << 20


def combine_crc32(parts: Iterable[tuple[int, int]]) -> int:
    """Return the crc32 of the concatenated parts, each given by its crc32 and its length in bytes."""
    crc = 0
    for part, num_bytes in parts:
        crc = _times(_power(num_bytes), crc) ^ part
    return crc


def crc32_of_file(path: Path) -> int:
    """Return the crc32 of a file, which is read in pieces."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc


def _power(num_bytes: int) -> int:
    """Return x to the power of 8 * num_bytes."""
    product, exponent, square = ONE, num_bytes, 3
    while exponent:
        if exponent & 1:
            product = _times(_squared(square), product)
        exponent, square = exponent >> 1, square + 1
    return product


@cache
def _squared(times: int) -> int:
    """Return x squared `times` times."""
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
