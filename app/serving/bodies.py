"""The bodies of POST /v1/embeddings: JSON, MessagePack, Arrow and raw bytes, read and written."""

# N ids of a request, D dimension
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from springtide_client.errors import EncodeError
from springtide_client.keys import id_of

from app.serving.problems import ApiError, bad_request, invalid

JSON = "application/json"
MSGPACK = "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"
RAW = "application/octet-stream"
FORMATS = (JSON, MSGPACK, ARROW, RAW)
STATUS_NAMES = ("known", "unknown", "not_admitted", "forgotten")


@dataclass(frozen=True)
class Question:
    """The ids asked for: as sent, and as the table knows them."""

    sent: Sequence[Any] | npt.NDArray[np.int64]
    ids_N: npt.NDArray[np.int64]
    max_staleness_ms: float | None = None


@dataclass(frozen=True)
class Form:
    """A media type, and the width of its numbers (raw only)."""

    name: str
    half: bool = False


class EmbeddingsBody(msgspec.Struct):
    """The JSON and MessagePack body."""

    ids: list[Any]
    max_staleness_ms: float | None = None


@lru_cache(maxsize=256)
def read_form(content_type: str) -> Form:
    """The form of a Content-Type header; ApiError 415 where it is none of ours. Absent means JSON."""
    name, half = _split(content_type or JSON)
    if name not in FORMATS:
        raise ApiError(415, "unsupported_media_type", f"{name} is not understood here", f"send {', '.join(FORMATS)}")
    return Form(name, half)


@lru_cache(maxsize=256)
def answer_form(accept: str, asked: Form) -> Form:
    """The first form that an Accept header names, the question's own where it leaves the choice; 406 otherwise."""
    for part in accept.split(","):
        name, half = _split(part)
        if name in ("", "*/*", "application/*"):
            return asked
        if name in FORMATS:
            return Form(name, half)
    raise ApiError(406, "not_acceptable", f"no answer of type {accept} is made here", f"accept {', '.join(FORMATS)}")


def read_question(form: Form, body: bytes, max_ids: int) -> Question:
    """The ids of a body; ApiError where there are too many or one is none."""
    if form.name == RAW:
        if len(body) % 8:
            raise bad_request(f"{len(body)} bytes are no whole number of int64 ids", "send little-endian int64")
        ids_N = np.frombuffer(body, dtype="<i8")
        _check_number(len(ids_N), max_ids)
        return Question(ids_N, ids_N)
    if form.name == ARROW:
        return _read_arrow(body, max_ids)
    decode = msgspec.json.decode if form.name == JSON else msgspec.msgpack.decode
    try:
        question = decode(body, type=EmbeddingsBody)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {error}", 'send {"ids": [1, 2, "text"]}') from None
    _check_number(len(question.ids), max_ids)
    return Question(question.ids, ids_of(question.ids), question.max_staleness_ms)


def ids_of(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """The int64 ids of values as sent; ApiError 422 with the index of one that is none."""
    if all(type(value) is int for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass  # beyond int64: hashed as its decimal text, one by one
    ids_N = np.empty(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        try:
            ids_N[index] = id_of(value)[0]
        except EncodeError as error:
            hint = "an id is an integer or a text"
            raise ApiError(422, error.reason, f"ids[{index}]: {error}", hint, details={"index": index}) from None
    return ids_N


def write_answer(
    form: Form,
    question: Question,
    rows_ND: npt.NDArray[np.float32],
    status_N: npt.NDArray[np.uint8],
    *,
    feature: str,
    version: int,
) -> bytes:
    """The answer's bytes; rows are NaN where there is none."""
    if form.name == RAW:
        return rows_ND.astype("<f2" if form.half else "<f4", copy=False).tobytes() + status_N.tobytes()
    if form.name == ARROW:
        return _write_arrow(question, rows_ND, status_N, version)
    status = [STATUS_NAMES[code] for code in status_N.tolist()]
    sent = question.sent.tolist() if isinstance(question.sent, np.ndarray) else question.sent
    answer = {"feature": feature, "version": version, "dim": rows_ND.shape[1], "ids": sent, "status": status}
    if form.name == MSGPACK:
        return msgspec.msgpack.encode({**answer, "vectors": rows_ND.astype("<f4", copy=False).tobytes()})
    vectors = rows_ND.tolist()
    for index in np.flatnonzero(status_N).tolist():
        vectors[index] = None
    return msgspec.json.encode({**answer, "vectors": vectors})


def _split(part: str) -> tuple[str, bool]:
    name, *parameters = part.strip().lower().split(";")
    return name.strip(), any(parameter.replace(" ", "") == "dtype=float16" for parameter in parameters)


def _check_number(number: int, max_ids: int) -> None:
    if number > max_ids:
        raise ApiError(
            413, "too_many_ids", f"{number} ids in one request, the limit is {max_ids}", "send several requests"
        )


def _read_arrow(body: bytes, max_ids: int) -> Question:
    import pyarrow  # 40 MB of library that most servers never need

    try:
        table = pyarrow.ipc.open_stream(body).read_all()
        column = table.column("id")
        column.validate(full=True)
    except (pyarrow.ArrowException, KeyError, ValueError) as error:
        raise bad_request(f"the body is no Arrow stream with a column id: {error}") from None
    _check_number(len(column), max_ids)
    if pyarrow.types.is_int64(column.type) and column.null_count == 0:
        ids_N = np.ascontiguousarray(column.to_numpy(), dtype=np.int64)
        return Question(ids_N, ids_N)
    values = column.to_pylist()
    kinds = pyarrow.types
    if values and not (
        kinds.is_integer(column.type) or kinds.is_string(column.type) or kinds.is_large_string(column.type)
    ):
        raise invalid(f"the column id is of type {column.type}", "send int64 or string")
    return Question(values, ids_of(values))


def _write_arrow(
    question: Question, rows_ND: npt.NDArray[np.float32], status_N: npt.NDArray[np.uint8], version: int
) -> bytes:
    import pyarrow

    ids = pyarrow.array(question.sent if isinstance(question.sent, np.ndarray) else _uniform(question.sent))
    status = pyarrow.array([STATUS_NAMES[code] for code in status_N.tolist()], type=pyarrow.string())
    values = pyarrow.array(np.ascontiguousarray(rows_ND).reshape(-1))
    missing = pyarrow.array(status_N != 0)
    vectors = pyarrow.FixedSizeListArray.from_arrays(values, rows_ND.shape[1], mask=missing)
    batch = pyarrow.record_batch([ids, status, vectors], names=["id", "status", "vector"])
    batch = batch.replace_schema_metadata({"version": str(version)})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _uniform(values: Sequence[Any]) -> Sequence[Any]:
    """An Arrow column has one type: mixed ids go back as texts."""
    if all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        return values
    return [value if isinstance(value, str) or value is None else str(value) for value in values]
