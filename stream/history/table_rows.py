"""Rows of Parquet files straight to columns: their JSON is written only for rows that the reference must decide.

What is decoded is what the messages of `InputFile` would give, which are the definition: tests hold both equal.
"""

# N rows
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.decode.arrow_columns import TableWriter, new_strings
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.parsers.seen_set import SeenSet
from springtide.stream.decode.rows import DecodedRows, RecordParser
from springtide.stream.history.input_file import message_of
from springtide.stream.positions import HISTORY
from springtide_client.array_types import BoolArray
from springtide_client.features import IdStrings
from springtide_client.schema import Schema


@dataclass(frozen=True)
class TableRows(RawRecords):
    """Rows of an Arrow table as records, whose messages are written on demand."""

    table: Any = None

    def value(self, n: int) -> bytes | None:
        return message_of(self.table.slice(n, 1).to_pylist()[0])

    @staticmethod
    def of(table: Any, first: int) -> "TableRows":
        """Return a table's rows; the first one has the offset `first`."""
        num_rows = table.num_rows
        zeros_N, absent_N = np.zeros(num_rows, np.int64), np.full(num_rows, -1, np.int64)
        return TableRows(
            partition=HISTORY,
            buffer=b"",
            value_start_N=zeros_N,
            value_length_N=absent_N,
            key_start_N=zeros_N,
            key_length_N=absent_N,
            record_ms_N=zeros_N,
            offset_N=np.arange(first, first + num_rows, dtype=np.int64),
            end=first + num_rows,
            table=table,
        )


class RowParser(RecordParser):
    """Writes tables to rows; records that are messages go to the parser of those."""

    def __init__(
        self,
        schema: Schema,
        config: DecodeConfig,
        seen: SeenSet,
        messages: RecordParser | None,
        keys: Sequence[str] = (),
    ) -> None:
        """`seen`: the ids whose string has been emitted. `keys`: further ids, whose strings are not."""
        self._writer = TableWriter(schema, config.max_future_seconds, keys)
        self._names = {path[0] for path in self._writer.paths.values()} | {*schema.names, *keys}
        self._seen, self._messages = seen, messages

    def parse(self, raw: RawRecords, rows: DecodedRows, now_ms: int) -> tuple[BoolArray, IdStrings]:
        if not isinstance(raw, TableRows):
            if self._messages is None:
                return np.ones(len(raw), np.bool_), no_strings()
            return self._messages.parse(raw, rows, now_ms)
        used = [field.type for field in raw.table.schema if field.name in self._names]
        if not all(map(means_the_same, used)):
            return np.ones(len(raw), np.bool_), no_strings()
        is_bad_N, noted = self._writer.write(raw.table, rows, 0, raw.record_ms_N, now_ms)
        strings = [
            new_strings(self._seen, number, ids, np.flatnonzero(ids.is_hashed & ~is_bad_N[row_M]))
            for number, row_M, ids in noted
        ]
        return is_bad_N, IdStrings.concatenate([no_strings(), *strings])


def no_strings() -> IdStrings:
    """Return none."""
    return IdStrings(np.zeros(0, np.uint16), np.zeros(0, np.int64), [])


def means_the_same(kind: Any) -> bool:
    """Return False for types whose JSON is another value than the column's: dates are text there, not milliseconds."""
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return bool(pa.types.is_timestamp(kind))
    if pa.types.is_dictionary(kind):
        return means_the_same(kind.value_type)
    return all(means_the_same(kind.field(n).type) for n in range(kind.num_fields))


def open_decoder(schema: Schema, config: DecodeConfig) -> Decoder:
    """Return a decoder of rows: of messages in JSON, and of tables."""
    config = config.with_json()
    decoder = Decoder(schema, config)
    decoder.fast_path = RowParser(
        decoder.row_schema, config, decoder.seen_strings, decoder.fast_path, decoder.only_keys
    )
    return decoder
