"""JSON files that end with their own checksum: the last key, `crc32`, covers every byte before its comma."""

import re
import zlib
from typing import Any, TypeVar

import msgspec

from springtide_client.errors import LogError

T = TypeVar("T")
_CHECKSUM_SUFFIX = re.compile(rb',"crc32":(\d+)\}\s*$')


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
        return msgspec.json.decode(content, type=type)
    except msgspec.MsgspecError as error:
        raise LogError(f"{name} cannot be read: {error}") from None
