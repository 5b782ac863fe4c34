"""Checksums of files, and JSON files that carry their own."""

import re
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from springtide_client.errors import LogError
from springtide_client.system.json_text import decode_json

POLYNOMIAL = 0xEDB88320
ONE, X = 1 << 31, 1 << 30  # bits are reflected: the highest is the constant term
READ_BYTES = 1 << 20
T = TypeVar("T")
_CHECKSUM_SUFFIX = re.compile(rb',"crc32":(\d+)\}\s*$')


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


def encode_checksummed_json(value: Any) -> bytes:
    """Encode an object with at least one key, and append its checksum as the last key."""
    body = msgspec.json.encode(value)[:-1]
    return body + b',"crc32":%d}' % zlib.crc32(body)


def has_checksum(content: bytes) -> bool:
    """Return True if a file ends with its checksum; `decode_checksummed_json` does not check a file without one."""
    return _CHECKSUM_SUFFIX.search(content) is not None


def decode_checksummed_json(content: bytes, type: type[T], name: str) -> T:
    """Decode a file called `name` in errors; LogError when it is corrupt. A file without a checksum is accepted."""
    suffix = _CHECKSUM_SUFFIX.search(content)
    if suffix is not None and zlib.crc32(content[: suffix.start()]) != int(suffix.group(1)):
        raise LogError(f"{name} is corrupt: it does not match its checksum")
    try:
        decoded: T = decode_json(content, type)
        return decoded
    except msgspec.MsgspecError as error:
        raise LogError(f"{name} cannot be read: {error}") from None
