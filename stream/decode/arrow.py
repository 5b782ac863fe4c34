"""Arrow: a message is an IPC stream of record batches, and each of their rows is a sample.

The columns of messages that follow each other with one schema are decoded together, without a Python object per row.
What these columns cannot decide (decimals, numbers in strings, a row that is no sample) the reference decodes row by
row. A position is between two messages, so a message is learned as a whole: with a row that cannot be, it is a dead
letter.
"""

from collections.abc import Sequence
from typing import Any

from springtide.stream.decode.arrow_columns import TableWriter, rows_of
from springtide.stream.decode.formats import DecodeConfig, MessageCodec
from springtide.stream.decode.parsers.arrow_parser import MAX_ROWS, ArrowParser
from springtide.stream.decode.parsers.seen_set import SeenSet
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema
from springtide_client.system.json_text import decode_json


class ArrowCodec(MessageCodec):
    """IPC streams; dictionaries, compression and several batches are allowed."""

    def __init__(self, config: DecodeConfig) -> None: ...

    def load(self, value: bytes) -> Any:
        """Return the rows of a message."""
        return rows_of(self.load_table(value))

    def load_table(self, value: bytes) -> Any:
        """Return a message as a table whose times are in milliseconds; ValueError where its bytes are none."""
        import pyarrow as pa

        source = pa.BufferReader(value)
        try:
            with pa.ipc.open_stream(source) as reader:
                batches, num_rows = [], 0
                for batch in reader:
                    batch.validate(full=True)
                    num_rows += batch.num_rows
                    if num_rows > MAX_ROWS:
                        raise EncodeError("too_large", f"the message has more than {MAX_ROWS:,} rows")
                    batches.append(batch)
                table = without_nanoseconds(pa.Table.from_batches(batches, reader.schema))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from None
        table.column_names  # noqa: B018  a ValueError where one of them is no text
        if num_left := len(value) - source.tell():
            raise ValueError(f"{num_left} bytes follow the stream")
        return table

    def from_json(self, message: bytes) -> bytes:
        """Return a stream of one row, with the types that pyarrow gives its values."""
        import pyarrow as pa

        try:
            table = pa.Table.from_pylist([decode_json(message)])
        except (pa.ArrowException, AttributeError) as error:
            raise ValueError(str(error)) from None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    def table_writer(self, schema: Schema, config: DecodeConfig, *, keys: Sequence[str] = ()) -> TableWriter:
        return TableWriter(schema, config.max_future_seconds, keys)

    def table_parser(self, schema: Schema, config: DecodeConfig, seen: SeenSet) -> ArrowParser:
        return ArrowParser(schema, config, seen)


def without_nanoseconds(table: Any) -> Any:
    """Return the table with times in microseconds: Python has no finer ones."""
    import pyarrow as pa

    if "ns" not in {getattr(kind, "unit", None) for kind in table.schema.types}:
        return table
    finer = {pa.timestamp: pa.types.is_timestamp, pa.time64: pa.types.is_time64, pa.duration: pa.types.is_duration}
    for index, field in enumerate(table.schema):
        for make, is_kind in finer.items():
            if is_kind(field.type) and field.type.unit == "ns":
                options = {"tz": field.type.tz} if make is pa.timestamp else {}
                column = table.column(index).cast(make("us", **options), safe=False)
                table = table.set_column(index, field.with_type(column.type), column)
    return table
