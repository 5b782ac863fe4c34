"""Message headers of an Arrow stream, read before its content, which may expand to far more than was sent.

Format: https://arrow.apache.org/docs/format/Columnar.html#format-message, a flatbuffer; unused fields are skipped.
"""

import struct
from typing import NamedTuple

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
CONTINUATION = b"\xff\xff\xff\xff"
# fields by their number in Message.fbs: Message.header_type, .header, .bodyLength; RecordBatch.length, .compression
HEADER_TYPE, HEADER, BODY_LENGTH = 1, 2, 3
LENGTH, COMPRESSION = 0, 3


class MessageHeader(NamedTuple):
    """The header of one message."""

    kind: int
    num_rows: int
    is_compressed: bool


def read_message_headers(stream: bytes) -> list[MessageHeader]:
    """The header of each message; ValueError if the stream is malformed or ends within a message."""
    headers = []
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
            header, body_bytes = _read_header(stream[at : at + size])
            headers.append(header)
            at += size + body_bytes
            if body_bytes < 0 or at > len(stream):
                raise ValueError(f"a message announces {body_bytes} bytes of content, and the stream ends earlier")
    except struct.error:
        raise ValueError("a message header points outside itself") from None
    return headers


def _read_header(message: bytes) -> tuple[MessageHeader, int]:
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
    """The position of a field in a flatbuffer table; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < 0:
        raise struct.error
    (vtable_bytes,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * number
    if entry + 2 > vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", message, vtable + entry)
    return table + offset if offset else 0
