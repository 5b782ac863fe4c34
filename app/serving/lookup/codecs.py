"""The bodies of POST /v1/embeddings: JSON, MessagePack, Arrow and raw bytes, read and written."""

# N ids of a request, D dimension
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from springtide_client.errors import EncodeError
from springtide_client.keys import encode_id

from app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request, too_many_ids
from app.serving.http.preconditions import check_max_staleness
from app.serving.lookup.arrow_codec import STATUS_NAMES as STATUS_NAMES
from app.serving.lookup.arrow_codec import encode_stream, read_id_column
from kernels.cpu.serving.float_to_json import NUMBER_BYTES, SLACK_BYTES, write_rows, write_rows_holding_gil
from kernels.cpu.serving.parse_ids import read_json_ids, read_msgpack_ids, read_text_ids

JSON = "application/json"
MSGPACK = "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"
RAW = "application/octet-stream"
MEDIA_TYPES = (JSON, MSGPACK, ARROW, RAW)


@dataclass(frozen=True)
class MediaType:
    """A media type, and the width of its numbers (raw only)."""

    name: str
    float16: bool = False


class LookupRequest(NamedTuple):
    """The ids asked for: as sent, and as the table knows them."""

    raw_ids: Any  # a list, an int64 array or an Arrow array
    ids_N: npt.NDArray[np.int64]
    max_staleness_ms: float | None = None
    encoded_ids: tuple[str, msgspec.Raw] | None = (
        None  # plain integers: the media type they came in, and their bytes there
    )


class LookupBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON and MessagePack body. A demand that is misspelt is refused, not passed over."""

    ids: list[Any]
    max_staleness_ms: float | None = None


class UnparsedLookupBody(msgspec.Struct, forbid_unknown_fields=True):
    """The same, its ids not looked at yet."""

    ids: msgspec.Raw
    max_staleness_ms: float | None = None


INTEGER_ID_READERS: dict[str, tuple[Callable[[bytes], UnparsedLookupBody], Callable[..., int]]] = {
    JSON: (msgspec.json.Decoder(UnparsedLookupBody).decode, read_json_ids),
    MSGPACK: (msgspec.msgpack.Decoder(UnparsedLookupBody).decode, read_msgpack_ids),
}
QUALITY = re.compile(r";\s*[qQ]=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*(?:;|$)")
STATUS_TEXTS = tuple(f'"{name}"'.encode() for name in STATUS_NAMES)
# up to here other threads wait: they would be given the GIL for longer than the writing takes
MAX_NUMBERS_HOLDING_GIL = 16_384


@lru_cache(maxsize=256)
def parse_content_type(content_type: str) -> MediaType:
    """The form of a Content-Type header; ApiError 415 where it is none of ours. Absent means JSON."""
    name, half = _split(content_type or JSON)
    if name not in MEDIA_TYPES:
        raise ApiError(
            415, "unsupported_media_type", f"{name} is not understood here", f"send {', '.join(MEDIA_TYPES)}"
        )
    return MediaType(name, half)


@lru_cache(maxsize=256)
def negotiate_media_type(accept: str, asked: MediaType) -> MediaType:
    """Of the forms that an Accept header names the one it weighs most, the first among equals; 406 where it is none.

    Where it leaves the choice, the question's own.
    """
    for part in sorted(accept.split(","), key=_weight, reverse=True):
        name, half = _split(part)
        if not _weight(part):
            break
        if name in ("", "*/*", "application/*"):
            return asked
        if name in MEDIA_TYPES:
            return MediaType(name, half)
    raise ApiError(
        406, "not_acceptable", f"no answer of type {accept[:80]} is made here", f"accept {', '.join(MEDIA_TYPES)}"
    )


def decode_request(form: MediaType, body: bytes, max_ids: int) -> LookupRequest:
    """The ids of a body; ApiError where there are too many or one is none."""
    if form.name == RAW:
        if len(body) % 8:
            raise bad_request(f"{len(body)} bytes are no whole number of int64 ids", "send little-endian int64")
        ids_N = np.frombuffer(body, dtype="<i8")
        _check_number(len(ids_N), max_ids)
        return LookupRequest(ids_N, ids_N)
    if form.name == ARROW:
        column, ids = read_id_column(body, max_ids)
        return LookupRequest(column, parse_ids(column.to_pylist()) if ids is None else ids)
    question = _read_plain(form, body, max_ids) or _read_any(form, body, max_ids)
    check_max_staleness(question.max_staleness_ms)
    return question


def _read_any(form: MediaType, body: bytes, max_ids: int) -> LookupRequest:
    decode = msgspec.json.decode if form.name == JSON else msgspec.msgpack.decode
    try:
        question = decode(body, type=LookupBody)
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be read: {error}", 'send {"ids": [1, 2, "text"]}') from None
    _check_number(len(question.ids), max_ids)
    return LookupRequest(question.ids, parse_ids(question.ids), question.max_staleness_ms)


def _read_plain(form: MediaType, body: bytes, max_ids: int) -> LookupRequest | None:
    """The question where all its ids are int64 numbers, and not too many; None leaves it to who finds the fault."""
    decode, read_ids = INTEGER_ID_READERS[form.name]
    try:
        plain = decode(body)
    except DECODE_ERRORS:
        return None
    text_B = np.frombuffer(plain.ids, np.uint8)
    ids_N = np.empty(min(len(text_B), max_ids), np.int64)
    count = read_ids(text_B, ids_N)
    if count < 0:
        return None
    ids_N = ids_N[:count]
    return LookupRequest(ids_N, ids_N, plain.max_staleness_ms, (form.name, plain.ids))


def parse_ids(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """The int64 ids of values as sent; ApiError 422 with the index of one that is none."""
    if all(type(value) is int for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass  # beyond int64: hashed as its decimal text, one by one
    ids_N = np.empty(len(values), dtype=np.int64)
    places, texts = [], []  # read all at once, by compiled code: one may be as long as the body
    for index, value in enumerate(values):
        try:
            if type(value) is str:
                texts.append(value.encode())
                places.append(index)
            else:
                ids_N[index] = encode_id(value)[0]
        except (EncodeError, UnicodeEncodeError) as error:
            reason = error.reason if isinstance(error, EncodeError) else "wrong_type"
            hint = "an id is an integer or a text"
            raise ApiError(422, reason, f"ids[{index}]: {error}", hint, details={"index": index}) from None
    if texts:
        offsets_N1 = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets_N1[1:])
        text_ids: npt.NDArray[np.int64] = read_text_ids(np.frombuffer(b"".join(texts) or b"\0", np.uint8), offsets_N1)
        if len(texts) == len(values):
            return text_ids
        ids_N[places] = text_ids
    return ids_N


def encode_response(
    form: MediaType,
    question: LookupRequest,
    rows_ND: npt.NDArray[np.float32],
    status_N: npt.NDArray[np.uint8],
    *,
    feature: str,
    version: int,
) -> bytes:
    """The answer's bytes; rows are NaN where there is none."""
    if form.name == RAW:
        return rows_ND.astype("<f2" if form.float16 else "<f4", copy=False).tobytes() + status_N.tobytes()
    if form.name == ARROW:
        return encode_stream(question.raw_ids, rows_ND, status_N, version)
    if form.name == JSON:
        return _write_json(question, rows_ND, status_N, feature, version)
    status = [STATUS_NAMES[code] for code in status_N.tolist()]
    ids = _ids_as_sent(question, MSGPACK)
    answer = {"feature": feature, "version": version, "dim": rows_ND.shape[1], "ids": ids, "status": status}
    return msgspec.msgpack.encode({**answer, "vectors": rows_ND.astype("<f4", copy=False).tobytes()})


def _write_json(
    question: LookupRequest,
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
    ids = msgspec.json.encode(_ids_as_sent(question, JSON))
    status = b",".join([STATUS_TEXTS[code] for code in status_N.tobytes()])
    return b"".join([head[:-1], b',"ids":', ids, b',"status":[', status, b'],"vectors":', text_B[:end].data, b"}"])


def _ids_as_sent(question: LookupRequest, media_type: str) -> Any:
    """What msgspec writes as the ids that came: their very bytes where they came in this form."""
    if question.encoded_ids is not None and question.encoded_ids[0] == media_type:
        return question.encoded_ids[1]
    return question.raw_ids if isinstance(question.raw_ids, list) else question.raw_ids.tolist()


def _split(part: str) -> tuple[str, bool]:
    name, *parameters = part.strip().lower().split(";")
    return name.strip(), any(parameter.replace(" ", "").replace('"', "") == "dtype=float16" for parameter in parameters)


def _weight(part: str) -> float:
    """The `q` of a media range: 1 where it is none."""
    match = QUALITY.search(part)
    return 1.0 if match is None else float(match[1])


def _check_number(number: int, max_ids: int) -> None:
    if number > max_ids:
        raise too_many_ids(number, max_ids)
