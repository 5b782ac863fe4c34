"""Arrow streams: their message headers, checked before their content, ids read from them, rows written to them."""

# N ids of a request, D dimension
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.serving.http.errors import bad_request, invalid, too_many_ids
from springtide.kernels.cpu.serving.parse_ids import read_text_ids
from springtide_client.model.view import STATUS_NAMES

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


HINT = "send an uncompressed stream with a column id of int64 or string"
END = b"\xff\xff\xff\xff\0\0\0\0"

Ids = npt.NDArray[np.int64]


def read_id_column(body: bytes, max_ids: int) -> tuple[Any, Ids | None]:
    """Read the ids as an Arrow array, and as int64 if all are int64 numbers or all are strings, else None.

    Raises ApiError 400 if there is no such column, 413 if its batches announce more than `max_ids` rows, 422 for a
    type that is not supported.
    """
    import pyarrow  # a library of 40 MB that most servers never need

    try:
        headers = read_message_headers(body)
        num_rows = sum(header.num_rows for header in headers)
        if num_rows > max_ids:
            raise too_many_ids(num_rows, max_ids)
        if any(header.is_compressed or header.kind == DICTIONARY_BATCH for header in headers):
            raise invalid("compressed buffers and dictionaries can hold far more than was sent", HINT)
        column = pyarrow.ipc.open_stream(body).read_all().column("id")
        column.validate(full=True)
    except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
        raise bad_request(f"the body is not an Arrow stream with a column id: {error}", HINT) from None
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    kinds = pyarrow.types
    if kinds.is_integer(array.type):
        is_plain = array.null_count == 0 and not kinds.is_uint64(array.type)
        return array, np.ascontiguousarray(array.to_numpy(), dtype=np.int64) if is_plain else None
    if kinds.is_string(array.type) or kinds.is_large_string(array.type):
        return array, _string_ids(array) if array.null_count == 0 else None
    if len(array) == 0:
        return array, np.empty(0, np.int64)
    raise invalid(f"the column id is of type {array.type}", HINT)


def _string_ids(array: Any) -> Ids:
    _, offsets, content = array.buffers()
    width = np.int32 if str(array.type) == "string" else np.int64
    if len(array) == 0:
        return np.empty(0, np.int64)
    offsets_N1 = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    string_ids: Ids = read_text_ids(np.frombuffer(content or b"\0", np.uint8), offsets_N1)
    return string_ids


def encode_stream(
    raw_ids: Any, rows_ND: npt.NDArray[np.float32], status_N: npt.NDArray[np.uint8], version: int
) -> bytes:
    """Encode the response; a vector is null where the id has no row. `raw_ids` are the ids as they were sent."""
    import pyarrow

    ids = raw_ids if isinstance(raw_ids, pyarrow.Array) else pyarrow.array(_one_type(raw_ids))
    values = pyarrow.array(np.ascontiguousarray(rows_ND).reshape(-1))
    dim = rows_ND.shape[1]
    if status_N.any():
        status = _names().take(pyarrow.array(status_N))
        vectors = pyarrow.FixedSizeListArray.from_arrays(values, dim, mask=pyarrow.array(status_N != 0))
    else:
        status = pyarrow.repeat(STATUS_NAMES[0], len(status_N))
        vectors = pyarrow.FixedSizeListArray.from_arrays(values, dim)
    schema, head = _schema(ids.type, dim, version)
    batch = pyarrow.RecordBatch.from_arrays([ids, status, vectors], schema=schema)
    return b"".join([head, batch.serialize(), END])


@lru_cache(maxsize=1)
def _names() -> Any:
    import pyarrow

    return pyarrow.array(STATUS_NAMES)


@lru_cache(maxsize=16)
def _schema(id_type: Any, dim: int, version: int) -> tuple[Any, bytes]:
    """The schema of a response, and the message that its stream begins with."""
    import pyarrow

    columns = {"id": id_type, "status": pyarrow.string(), "vector": pyarrow.list_(pyarrow.float32(), dim)}
    schema = pyarrow.schema(columns, metadata={"version": str(version)})
    return schema, schema.serialize().to_pybytes()


def _one_type(values: Any) -> Any:
    """An Arrow column has one type: ids of mixed types are returned as strings."""
    if isinstance(values, np.ndarray) or all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        return values
    return [value if isinstance(value, str) or value is None else str(value) for value in values]
