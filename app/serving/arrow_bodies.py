"""Arrow streams in and out of POST /v1/embeddings: a column id; columns id, status, vector."""

# N ids of a request, D dimension
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from app.serving.arrow_heads import DICTIONARY_BATCH, read_heads
from app.serving.problems import bad_request, invalid, too_many_ids

HINT = "send an uncompressed stream with a column id of int64 or string"
STATUS_NAMES = ("known", "unknown", "not_admitted", "forgotten")


def read_id_column(body: bytes, max_ids: int) -> npt.NDArray[np.int64] | list[Any]:
    """The ids: int64 as they are, anything else as Python values; ApiError where there is no such column, or 413 where
    its batches announce more than `max_ids`."""
    import pyarrow  # 40 MB of library that most servers never need

    try:
        heads = read_heads(body)
        num_rows = sum(head.num_rows for head in heads)
        if num_rows > max_ids:
            raise too_many_ids(num_rows, max_ids)
        if any(head.is_compressed or head.kind == DICTIONARY_BATCH for head in heads):
            raise invalid("compressed buffers and dictionaries may hold far more than is sent", HINT)
        column = pyarrow.ipc.open_stream(body).read_all().column("id")
        column.validate(full=True)
    except (pyarrow.ArrowException, KeyError, ValueError, OSError) as error:
        raise bad_request(f"the body is no Arrow stream with a column id: {error}", HINT) from None
    if pyarrow.types.is_int64(column.type) and column.null_count == 0:
        return np.ascontiguousarray(column.to_numpy(), dtype=np.int64)
    kinds = pyarrow.types
    if len(column) and not (
        kinds.is_integer(column.type) or kinds.is_string(column.type) or kinds.is_large_string(column.type)
    ):
        raise invalid(f"the column id is of type {column.type}", "send int64 or string")
    values: list[Any] = column.to_pylist()
    return values


def write_stream(
    sent: Sequence[Any] | npt.NDArray[np.int64],
    rows_ND: npt.NDArray[np.float32],
    status_N: npt.NDArray[np.uint8],
    version: int,
) -> bytes:
    """The answer; a vector is null where there is no row."""
    import pyarrow

    ids = pyarrow.array(sent if isinstance(sent, np.ndarray) else _uniform(sent))
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
