"""Rows as an Arrow table with the columns `ids`, `vectors`, `count` and `last_seen_ms`."""

# N rows, D dimension
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from springtide.embeddings.rows import Int64Array
from springtide_client.rows.row_block import RowBlock

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONAL = ("count", "last_seen_ms")


def to_arrow(rows: RowBlock) -> pa.Table:
    """A table without nulls: `ids` int64, `vectors` fixed-size lists of float32, `count` and `last_seen_ms` int64."""
    pa = _pyarrow()
    dim = rows.value.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.value.reshape(-1)), dim)
    schema = pa.schema(
        [
            pa.field("ids", pa.int64(), nullable=False),
            pa.field("vectors", pa.list_(pa.float32(), dim), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("last_seen_ms", pa.int64(), nullable=False),
        ]
    )
    return pa.table([pa.array(rows.id), vectors, pa.array(rows.count), pa.array(rows.last_seen)], schema=schema)


def from_arrow(table: Any, dim: int, state_width: int) -> RowBlock:
    """The rows of such a table, without optimizer state. ValueError says what is wrong with it."""
    pa = _pyarrow()
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise ValueError(f"a pyarrow.Table is needed, not a {type(table).__name__}")
    names = table.column_names
    missing = [name for name in ("ids", "vectors") if name not in names]
    unknown = [name for name in names if name not in ("ids", "vectors", *OPTIONAL)]
    if missing or unknown or len(set(names)) < len(names):
        raise ValueError(
            f"the columns must be ids, vectors and optionally count and last_seen_ms, not {names}: "
            "rename them, or select()"
        )
    ids_N = _integers(table, "ids")
    others = [_integers(table, name) if name in names else np.zeros(len(ids_N), np.int64) for name in OPTIONAL]
    for name, column_N in zip(OPTIONAL, others, strict=True):
        if (column_N < 0).any():
            raise ValueError(f"{name} contains {column_N.min()}: it must not be negative")
    return rows_of(ids_N, _vectors(table, dim), dim, state_width, *others)


def rows_of(
    ids_N: Int64Array,
    values_ND: Any,
    dim: int,
    state_width: int,
    counts_N: Int64Array | None = None,
    last_seen_N: Int64Array | None = None,
) -> RowBlock:
    """Rows of the module's only feature. ValueError if an id occurs twice or a number is not finite."""
    if values_ND.shape != (len(ids_N), dim):
        raise ValueError(
            f"the vectors of {len(ids_N)} ids must be of shape ({len(ids_N)}, {dim}), not {values_ND.shape}"
        )
    with np.errstate(over="ignore"):  # what is too large for float32 is reported below
        values_ND = np.ascontiguousarray(values_ND, np.float32)
    wrong_N = ~np.isfinite(values_ND).all(1)
    if wrong_N.any():
        raise ValueError(f"the vector of id {ids_N[wrong_N][0]} contains a number that is not finite in float32")
    ordered_N = np.sort(ids_N)
    twice_N = ordered_N[1:][ordered_N[1:] == ordered_N[:-1]]
    if len(twice_N):
        raise ValueError(f"id {twice_N[0]} occurs twice")
    zeros_N = np.zeros(len(ids_N), np.int64)
    return RowBlock(
        zeros_N.astype(np.uint16),
        ids_N,
        values_ND,
        np.zeros((len(ids_N), state_width), np.float32),
        zeros_N if counts_N is None else counts_N,
        zeros_N if last_seen_N is None else last_seen_N,
    )


def _integers(table: pa.Table, name: str) -> Int64Array:
    pa = _pyarrow()
    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{name} must be integers, not {column.type}")
    _no_nulls(column, name)
    try:
        numbers_N: Int64Array = np.ascontiguousarray(column.cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name} must fit into int64: {error}") from None
    return numbers_N


def _vectors(table: pa.Table, dim: int) -> Any:
    pa = _pyarrow()
    column = table.column("vectors")
    kind = column.type
    lists = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_floating(kind.value_type):
        raise ValueError(f"vectors must be lists of floating-point numbers, not {kind}")
    _no_nulls(column, "vectors")
    chunks = []
    for chunk in column.chunks:
        wrong = [length for length in pa.compute.list_value_length(chunk).unique().to_pylist() if length != dim]
        if wrong:
            raise ValueError(f"a vector contains {wrong[0]} numbers, but dim is {dim}")
        numbers = chunk.flatten()
        _no_nulls(numbers, "vectors")
        chunks.append(numbers.to_numpy(zero_copy_only=False).reshape(-1, dim))
    return np.concatenate(chunks) if chunks else np.empty((0, dim), np.float32)


def _no_nulls(column: Any, name: str) -> None:
    if column.null_count:
        raise ValueError(f"{name} contains {column.null_count} nulls: leave those rows out")


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError as error:
        raise ImportError(f"Arrow tables need pyarrow, which this Python lacks ({error}): install it") from None
    return pa
