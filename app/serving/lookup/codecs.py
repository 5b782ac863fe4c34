"""Codecs of batch lookups: request and response bodies in JSON, MessagePack, Arrow and raw bytes."""

# N ids of a request, D dimension
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request, too_many_ids
from springtide.app.serving.http.preconditions import MaxStalenessMs, check_max_staleness
from springtide.app.serving.http.route import ARROW, BINARY, JSON, MSGPACK, RAW, RequestId
from springtide.app.serving.lookup.arrow_codec import encode_stream, read_id_column
from springtide.app.serving.lookup.content_negotiation import MediaType
from springtide.kernels.cpu.serving.float_to_json import NUMBER_BYTES, SLACK_BYTES, write_rows, write_rows_holding_gil
from springtide.kernels.cpu.serving.parse_ids import read_json_ids, read_msgpack_ids, read_text_ids
from springtide_client.errors import EncodeError
from springtide_client.keys import encode_id
from springtide_client.model.view import STATUS_NAMES

Status = Literal["known", "unknown", "not_admitted", "forgotten"]  # STATUS_NAMES


class LookupRequest(NamedTuple):
    """The ids of one request."""

    raw_ids: Any  # as they were sent: a list, an int64 array or an Arrow array
    ids_N: npt.NDArray[np.int64]
    max_staleness_ms: float | None = None
    encoded_ids: tuple[str, msgspec.Raw] | None = None  # of integers only: the media type and the bytes they arrived in


class LookupBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON and MessagePack body. A misspelt field is an error, so that a precondition is never ignored."""

    ids: list[RequestId]
    max_staleness_ms: MaxStalenessMs = None


class LookupResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The rows in JSON; the ids as they were sent."""

    feature: str
    version: int
    dim: int
    ids: list[Any]
    status: list[Status]
    vectors: list[list[float | None] | None]


PackedVectors = Annotated[Any, msgspec.Meta(description="N x dim little-endian float32.", extra_json_schema=BINARY)]


class PackedLookupResponse(msgspec.Struct, forbid_unknown_fields=True):
    """A look-up's response in MessagePack, with all vectors in one binary."""

    feature: str
    version: int
    dim: int
    ids: list[Any]
    status: list[Status]
    vectors: PackedVectors


class UnparsedLookupBody(msgspec.Struct, forbid_unknown_fields=True):
    """A look-up's body whose ids are not decoded yet."""

    ids: msgspec.Raw
    max_staleness_ms: float | None = None


INTEGER_ID_READERS: dict[str, tuple[Callable[[bytes], UnparsedLookupBody], Callable[..., int]]] = {
    JSON: (msgspec.json.Decoder(UnparsedLookupBody).decode, read_json_ids),
    MSGPACK: (msgspec.msgpack.Decoder(UnparsedLookupBody).decode, read_msgpack_ids),
}
JSON_STATUS_NAMES = tuple(f'"{name}"'.encode() for name in STATUS_NAMES)
# up to here the GIL is held: other threads would keep it for longer than the writing takes
MAX_NUMBERS_HOLDING_GIL = 16_384


def decode_request(media_type: MediaType, body: bytes, max_ids: int) -> LookupRequest:
    """Decode the ids of a body; ApiError 400 for a malformed body, 413 for too many ids, 422 for an invalid id."""
    if media_type.name == RAW:
        if len(body) % 8:
            raise bad_request(f"{len(body)} bytes are not a whole number of int64 ids", "send little-endian int64")
        ids_N = np.frombuffer(body, dtype="<i8")
        _check_num_ids(len(ids_N), max_ids)
        return LookupRequest(ids_N, ids_N)
    if media_type.name == ARROW:
        column, ids = read_id_column(body, max_ids)
        return LookupRequest(column, parse_ids(column.to_pylist()) if ids is None else ids)
    request = _decode_integer_ids(media_type, body, max_ids) or _decode_any_ids(media_type, body, max_ids)
    check_max_staleness(request.max_staleness_ms)
    return request


def _decode_any_ids(media_type: MediaType, body: bytes, max_ids: int) -> LookupRequest:
    decode = msgspec.json.decode if media_type.name == JSON else msgspec.msgpack.decode
    try:
        request = decode(body, type=LookupBody)
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be decoded: {error}", 'send {"ids": [1, 2, "text"]}') from None
    _check_num_ids(len(request.ids), max_ids)
    return LookupRequest(request.ids, parse_ids(request.ids), request.max_staleness_ms)


def _decode_integer_ids(media_type: MediaType, body: bytes, max_ids: int) -> LookupRequest | None:
    """Decode a body whose ids are all int64 numbers, by compiled code; None if it is not such a body."""
    decode, read_ids = INTEGER_ID_READERS[media_type.name]
    try:
        unparsed = decode(body)
    except DECODE_ERRORS:
        return None
    text_B = np.frombuffer(unparsed.ids, np.uint8)
    ids_N = np.empty(min(len(text_B), max_ids), np.int64)
    count = read_ids(text_B, ids_N)
    if count < 0:
        return None
    ids_N = ids_N[:count]
    return LookupRequest(ids_N, ids_N, unparsed.max_staleness_ms, (media_type.name, unparsed.ids))


def parse_ids(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Convert ids as they were sent to int64 ids [N]; ApiError 422 with the index of the first invalid one."""
    if all(type(value) is int for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass  # beyond int64: hashed as its decimal string, one by one
    ids_N = np.empty(len(values), dtype=np.int64)
    positions, strings = [], []  # hashed all at once, by compiled code: one may be as long as the body
    for index, value in enumerate(values):
        try:
            if type(value) is str:
                strings.append(value.encode())
                positions.append(index)
            else:
                ids_N[index] = encode_id(value)[0]
        except (EncodeError, UnicodeEncodeError) as error:
            reason = error.reason if isinstance(error, EncodeError) else "wrong_type"
            hint = "an id is an integer or a string"
            raise ApiError(422, reason, f"ids[{index}]: {error}", hint, details={"index": index}) from None
    if strings:
        offsets_N1 = np.zeros(len(strings) + 1, np.int64)
        np.cumsum([len(string) for string in strings], out=offsets_N1[1:])
        string_ids: npt.NDArray[np.int64] = read_text_ids(
            np.frombuffer(b"".join(strings) or b"\0", np.uint8), offsets_N1
        )
        if len(strings) == len(values):
            return string_ids
        ids_N[positions] = string_ids
    return ids_N


def encode_response(
    media_type: MediaType,
    request: LookupRequest,
    rows_ND: npt.NDArray[np.float32],
    status_N: npt.NDArray[np.uint8],
    *,
    feature: str,
    version: int,
) -> bytes:
    """Encode the body of the response; `rows_ND` has NaN where an id has no row."""
    if media_type.name == RAW:
        return rows_ND.astype("<f2" if media_type.float16 else "<f4", copy=False).tobytes() + status_N.tobytes()
    if media_type.name == ARROW:
        return encode_stream(request.raw_ids, rows_ND, status_N, version)
    if media_type.name == JSON:
        return _encode_json(request, rows_ND, status_N, feature, version)
    status = [STATUS_NAMES[code] for code in status_N.tolist()]
    ids = _ids_as_sent(request, MSGPACK)
    response = {"feature": feature, "version": version, "dim": rows_ND.shape[1], "ids": ids, "status": status}
    return msgspec.msgpack.encode({**response, "vectors": rows_ND.astype("<f4", copy=False).tobytes()})


def _encode_json(
    request: LookupRequest,
    rows_ND: npt.NDArray[np.float32],
    status_N: npt.NDArray[np.uint8],
    feature: str,
    version: int,
) -> bytes:
    num_rows, dim = rows_ND.shape
    text_B = np.empty(num_rows * (NUMBER_BYTES * dim + 5) + SLACK_BYTES, np.uint8)
    write = write_rows_holding_gil if num_rows * dim <= MAX_NUMBERS_HOLDING_GIL else write_rows
    end = write(np.ascontiguousarray(rows_ND), status_N, text_B)
    head = msgspec.json.encode({"feature": feature, "version": version, "dim": dim})
    ids = msgspec.json.encode(_ids_as_sent(request, JSON))
    status = b",".join([JSON_STATUS_NAMES[code] for code in status_N.tobytes()])
    return b"".join([head[:-1], b',"ids":', ids, b',"status":[', status, b'],"vectors":', text_B[:end].data, b"}"])


def _ids_as_sent(request: LookupRequest, media_type: str) -> Any:
    """The ids for msgspec to write; if they arrived in this media type, their own bytes."""
    if request.encoded_ids is not None and request.encoded_ids[0] == media_type:
        return request.encoded_ids[1]
    return request.raw_ids if isinstance(request.raw_ids, list) else request.raw_ids.tolist()


def _check_num_ids(number: int, max_ids: int) -> None:
    if number > max_ids:
        raise too_many_ids(number, max_ids)
