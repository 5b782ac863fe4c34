"""JSON files that know their own checksum: the last key, `crc32`, is that of every byte before its comma."""

import re
import zlib
from typing import Any, TypeVar

import msgspec

from springtide_client.errors import LogError

T = TypeVar("T")
_TAIL = re.compile(rb',"crc32":(\d+)\}\s*$')


def encode_checksummed_json(value: Any) -> bytes:
    """The JSON object (of at least one key) with its checksum as last key."""
    body = msgspec.json.encode(value)[:-1]
    return body + b',"crc32":%d}' % zlib.crc32(body)


def has_checksum(text: bytes) -> bool:
    """Return True if the text ends in its checksum; `decode_checksummed_json` does not check a text without one."""
    return _TAIL.search(text) is not None


def decode_checksummed_json(text: bytes, type: type[T], what: str) -> T:
    """The object; LogError, naming `what`, where the text is damaged or cut. One without a checksum is believed."""
    tail = _TAIL.search(text)
    if tail is not None and zlib.crc32(text[: tail.start()]) != int(tail.group(1)):
        raise LogError(f"{what} is damaged: it does not match its checksum")
    try:
        return msgspec.json.decode(text, type=type)
    except msgspec.MsgspecError as error:
        raise LogError(f"{what} cannot be read: {error}") from None
