"""Columns of Arrow tables as the arrays of DecodedRows, without a Python object per value."""

# R rows of a table, M elements of a list column
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.stream.decode.parsers.json_strings import write_string_ids
from springtide.stream.decode.parsers.seen_set import SeenSet
from springtide.stream.decode.plain_values import to_plain
from springtide.stream.decode.rows import DecodedRows
from springtide_client.array_types import BoolArray, Int64Array
from springtide_client.encode import FLOAT32_OVERFLOW
from springtide_client.features import IdStrings
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema, field_paths
from springtide_client.targets import EARLIEST_MS

DAY_MS = 86_400_000


class Ids(NamedTuple):
    """A column of ids. `is_bad`: the reference must decide; `is_hashed`: the id is that of a string."""

    ids: Int64Array
    is_null: BoolArray
    is_bad: BoolArray
    is_hashed: BoolArray
    strings: Any  # the Arrow column that the hashed ids are of


class Numbers(NamedTuple):
    """A column of numbers, float64, 0 where it is null. `is_bad`: the reference must decide."""

    values: npt.NDArray[np.float64]
    is_null: BoolArray
    is_bad: BoolArray


class TableWriter:
    """Writes the columns of Arrow tables to rows, and finds the rows that the reference must decide."""

    def __init__(self, schema: Schema, max_future_seconds: float, keys: Sequence[str] = ()) -> None:
        """`keys`: further ids, whose strings are not noted."""
        self.schema, self.keys, self.paths = schema, tuple(keys), field_paths([*schema.names, *keys])
        self.future_ms = int(max_future_seconds * 1000)

    def write(
        self, table: Any, rows: DecodedRows, first: int, record_ms_R: Int64Array, now_ms: int
    ) -> tuple[BoolArray, list[tuple[int, Int64Array, Ids]]]:
        """Write a table's rows from row `first` on.

        Returns which of them the reference must decide, and ids with their features' numbers and their rows here.
        """
        import pyarrow as pa

        if self.schema.weighted:
            return np.ones(table.num_rows, np.bool_), []
        try:
            return self._write(table, rows, first, record_ms_R, now_ms)
        except (pa.ArrowException, NotImplementedError):  # a type that has no such function
            return np.ones(table.num_rows, np.bool_), []

    def _write(
        self, table: Any, rows: DecodedRows, first: int, record_ms_R: Int64Array, now_ms: int
    ) -> tuple[BoolArray, list[tuple[int, Int64Array, Ids]]]:
        schema, num_rows = self.schema, table.num_rows
        here, is_bad_R, noted = slice(first, first + num_rows), np.zeros(num_rows, np.bool_), []
        all_rows = np.arange(num_rows)
        for column, name in enumerate(schema.categorical):
            found = ids_of(self.column(table, name))
            rows.categorical_NC[here, column] = np.where(found.is_null, MISSING_ID, found.ids)
            is_bad_R |= found.is_bad
            noted.append((schema.number(name), all_rows, found))
        for column, name in enumerate(self.keys):
            found = ids_of(self.column(table, name))
            rows.key_NK[here, column] = np.where(found.is_null, MISSING_ID, found.ids)
            is_bad_R |= found.is_bad
        for column, name in enumerate(schema.lists):
            elements, parent_M, is_bad_list_R = elements_of(self.column(table, name))
            is_bad_R |= is_bad_list_R
            is_bad_R[parent_M[elements.is_bad]] = True
            noted.append((schema.number(name), parent_M, elements))
            limit = schema.length_limit(name) * (-1 if name in schema.sequence else 1)
            self._write_lists(rows, here, column, elements.ids[~elements.is_null], parent_M[~elements.is_null], limit)
        for column, name in enumerate(schema.dense):
            numbers = numbers_of(self.column(table, name))
            rows.dense_NF[here, column] = np.where(numbers.is_null, np.nan, numbers.values)
            is_bad_R |= numbers.is_bad
        for column, name in enumerate(schema.labels):
            numbers = numbers_of(self.column(table, name))
            rows.labels_NL[here, column] = np.where(numbers.is_null, np.nan, numbers.values)
            is_bad_R |= numbers.is_bad | (numbers.values < 0)
            if name not in schema.links:
                is_bad_R |= numbers.values > 1
        is_bad_R |= np.isnan(rows.labels_NL[here]).all(axis=1)
        rows.weights_N[here] = 1
        if schema.weight is not None:
            numbers = numbers_of(self.column(table, schema.weight))
            rows.weights_N[here] = np.where(numbers.is_null, 1, numbers.values)
            is_bad_R |= numbers.is_bad | (numbers.values < 0)
        is_bad_R |= self._write_times(table, rows, here, record_ms_R, now_ms)
        return is_bad_R, noted

    def column(self, table: Any, name: str) -> Any:
        """The Arrow array of a field, with plain values; one of nulls where the table has no such field."""
        import pyarrow as pa

        path = (name,) if name in table.column_names or name not in self.paths else self.paths[name]
        if path[0] not in table.column_names:
            return pa.nulls(table.num_rows)
        if table.column_names.count(path[0]) > 1:
            return pa.array([b""] * table.num_rows)  # of a name that comes twice the reference takes the last
        array = to_array(table.column(path[0]))
        for part in path[1:]:
            if pa.types.is_null(array.type):
                return array
            if not pa.types.is_struct(array.type):
                return pa.array([b""] * len(array))
            index = array.type.get_field_index(part)
            array = pa.nulls(len(array)) if index < 0 else to_array(array.flatten()[index])
        return to_milliseconds(array)

    def _write_lists(
        self, rows: DecodedRows, here: slice, column: int, ids_M: Int64Array, parent_M: Int64Array, limit: int
    ) -> None:
        """Write lists, cut to the first `limit` elements or, if it is negative, to the last."""
        length_R = np.bincount(parent_M, minlength=here.stop - here.start)
        start_R = np.cumsum(length_R) - length_R
        rank_M = np.arange(len(ids_M)) - start_R[parent_M]
        kept_M = rank_M < limit if limit > 0 else rank_M >= length_R[parent_M] + limit
        kept_length_R = np.minimum(length_R, abs(limit))
        ids_M = ids_M[kept_M]
        rows.reserve(len(ids_M))
        rows.elements_E[rows.num_elements : rows.num_elements + len(ids_M)] = ids_M
        rows.start_NP[here, column] = rows.num_elements + np.cumsum(kept_length_R) - kept_length_R
        rows.length_NP[here, column] = kept_length_R
        rows.num_elements += len(ids_M)

    def _write_times(
        self, table: Any, rows: DecodedRows, here: slice, record_ms_R: Int64Array, now_ms: int
    ) -> BoolArray:
        latest_R = np.where(record_ms_R > 0, np.minimum(record_ms_R, now_ms), now_ms) + self.future_ms
        if self.schema.timestamp is None:
            rows.event_ms_N[here] = np.maximum(record_ms_R, 0)
            return np.asarray(rows.event_ms_N[here] > now_ms + self.future_ms)
        import pyarrow as pa

        array = self.column(table, self.schema.timestamp)
        if not pa.types.is_integer(array.type) or pa.types.is_uint64(array.type):
            return np.ones(len(array), np.bool_)
        values_R = _numpy(array.cast(pa.int64()))
        rows.event_ms_N[here] = values_R
        is_bad_R = (values_R != 0) & (values_R < EARLIEST_MS) | (values_R > latest_R)
        return np.asarray(is_bad_R | _is_null(array))


def new_strings(seen: SeenSet, number: int, ids: Ids, at_T: Int64Array) -> IdStrings:
    """The strings of the ids at these places of a feature's column that have not been emitted yet; now they are."""
    features = np.full(len(at_T), number, np.uint16)
    is_new_T = seen.add_all(features, ids.ids[at_T])
    at_T = at_T[is_new_T]
    return IdStrings(features[is_new_T], ids.ids[at_T], ids.strings.take(at_T).to_pylist() if len(at_T) else [])


def concatenate_tables(tables: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """Tables by their records' numbers: those of records that follow each other with one schema as one, with the first.

    They must be in the order of their numbers.
    """
    import pyarrow as pa

    numbered = [(number - place, number, table) for place, (number, table) in enumerate(tables.items())]
    for _, group in itertools.groupby(numbered, key=lambda each: (each[0], each[2].schema)):
        together = list(group)
        yield together[0][1], pa.concat_tables([table for _, _, table in together])


def rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a table with plain values; ValueError where a value has no Python object."""
    import pyarrow as pa

    try:
        return [to_plain(row) for row in table.to_pylist()]
    except (pa.ArrowException, NotImplementedError) as error:
        raise ValueError(str(error)) from None


def ids_of(array: Any) -> Ids:
    """The ids of an array of integers, integral floats, booleans or strings, as springtide_client.keys has them."""
    import pyarrow as pa

    none_M, is_null_M = np.zeros(len(array), np.bool_), _is_null(array)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_uint64(array.type):
        values_M = _numpy(array)
        return Ids(values_M.astype(np.int64), is_null_M, values_M >= np.uint64(2**63), none_M, array)
    if pa.types.is_integer(array.type):
        return Ids(_numpy(array).astype(np.int64), is_null_M, none_M, none_M, array)
    if pa.types.is_floating(array.type):
        values_M = _numpy(array).astype(np.float64)
        is_id_M = (np.abs(values_M) < 2.0**53) & (values_M == np.floor(values_M))
        return Ids(np.where(is_id_M, values_M, 0).astype(np.int64), is_null_M, ~is_id_M, none_M, array)
    if _is_text(array.type):
        ids_M, is_hashed_M = _string_ids(array)
        return Ids(ids_M, is_null_M, none_M, is_hashed_M & ~is_null_M, array)
    return Ids(np.zeros(len(array), np.int64), is_null_M, ~is_null_M, none_M, array)


def elements_of(array: Any) -> tuple[Ids, Int64Array, BoolArray]:
    """The elements of an array of lists, the row of each, int64 (M), and which rows are no lists, bool (R)."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        length_R = _numpy(pa.compute.list_value_length(array)).astype(np.int64)
        elements = to_milliseconds(to_array(pa.compute.list_flatten(array)))
        return ids_of(elements), np.repeat(np.arange(len(array)), length_R), np.zeros(len(array), np.bool_)
    return ids_of(pa.nulls(0)), np.zeros(0, np.int64), ~_is_null(array)


def numbers_of(array: Any) -> Numbers:
    """The numbers of an array of integers, floats or booleans that float32 can hold."""
    import pyarrow as pa

    is_null_R = _is_null(array)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return Numbers(np.zeros(len(array)), is_null_R, ~is_null_R)
    values_R = _numpy(array).astype(np.float64)
    is_bad_R = ~(np.abs(values_R) < FLOAT32_OVERFLOW)
    return Numbers(np.where(is_bad_R, 0.0, values_R), is_null_R, is_bad_R)


def to_array(column: Any) -> Any:
    """A column as one array without a dictionary."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def to_milliseconds(array: Any) -> Any:
    """An array of times as one of milliseconds (plain_values.py); any other array as it is."""
    import pyarrow as pa

    kind = array.type
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return array
    is_narrow = kind.bit_width == 32
    values_R, is_null_R = _numpy(array.view(pa.int32() if is_narrow else pa.int64())).astype(np.int64), _is_null(array)
    if pa.types.is_date32(kind):
        values_R = values_R * DAY_MS
    elif not pa.types.is_date64(kind):
        values_R = values_R * 1000 if kind.unit == "s" else values_R // {"ms": 1, "us": 1000, "ns": 10**6}[kind.unit]
    return pa.array(values_R, pa.int64(), mask=is_null_R)


def _string_ids(array: Any) -> tuple[Int64Array, BoolArray]:
    import pyarrow as pa

    array = array.cast(pa.large_string())
    _, offsets, text = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    offsets_M = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    text_B = np.zeros(1, np.uint8) if text is None or text.size == 0 else np.frombuffer(text, np.uint8)
    ids_M, is_hashed_M = np.empty(len(array), np.int64), np.empty(len(array), np.bool_)
    write_string_ids(text_B, offsets_M, ids_M, is_hashed_M)
    return ids_M, is_hashed_M


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_null(array: Any) -> BoolArray:
    if array.null_count == 0:
        return np.zeros(len(array), np.bool_)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _numpy(array: Any) -> npt.NDArray[Any]:
    """The values of an array of numbers, 0 where they are null."""
    if array.null_count:
        array = array.fill_null(0)
    return np.asarray(array.to_numpy(zero_copy_only=False))
