"""The heads of an Arrow stream's messages, read before its content: they may announce far more than was sent.

Format: https://arrow.apache.org/docs/format/Columnar.html#format-message, a flatbuffer; only what is needed is read.
"""

import struct
from typing import NamedTuple

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
CONTINUATION = b"\xff\xff\xff\xff"
# fields by their number in Message.fbs: Message.header_type, .header, .bodyLength; RecordBatch.length, .compression
HEADER_TYPE, HEADER, BODY_LENGTH = 1, 2, 3
LENGTH, COMPRESSION = 0, 3


class MessageHeader(NamedTuple):
    """What the head of a message says."""

    kind: int
    num_rows: int
    is_compressed: bool


def read_message_headers(stream: bytes) -> list[MessageHeader]:
    """The head of each message; ValueError where the stream is none, or ends in the middle of a message."""
    heads = []
    at = 0
    try:
        while at < len(stream):
            if stream[at : at + 4] == CONTINUATION:
                at += 4
            (size,) = struct.unpack_from("<i", stream, at)
            at += 4
            if size == 0:
                break
            if size < 0 or at + size > len(stream):
                raise ValueError(f"a message announces {size} bytes of metadata, {len(stream) - at} are there")
            head, body_bytes = _read_head(stream[at : at + size])
            heads.append(head)
            at += size + body_bytes
            if body_bytes < 0 or at > len(stream):
                raise ValueError(f"a message announces {body_bytes} bytes of content, and the stream ends before")
    except struct.error:
        raise ValueError("a message's head points outside itself") from None
    return heads


def _read_head(message: bytes) -> tuple[MessageHeader, int]:
    (root,) = struct.unpack_from("<I", message, 0)
    kind_at, header_at, body_at = (_field(message, root, number) for number in (HEADER_TYPE, HEADER, BODY_LENGTH))
    kind = message[kind_at] if 0 < kind_at < len(message) else 0
    (body_bytes,) = struct.unpack_from("<q", message, body_at) if body_at else (0,)
    if kind != RECORD_BATCH or not header_at:
        return MessageHeader(kind, 0, False), body_bytes
    table = header_at + struct.unpack_from("<I", message, header_at)[0]
    length_at = _field(message, table, LENGTH)
    (num_rows,) = struct.unpack_from("<q", message, length_at) if length_at else (0,)
    return MessageHeader(kind, num_rows, _field(message, table, COMPRESSION) > 0), body_bytes


def _field(message: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table begins; 0 where it is left out."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < 0:
        raise struct.error
    (vtable_bytes,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * number
    if entry + 2 > vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", message, vtable + entry)
    return table + offset if offset else 0
