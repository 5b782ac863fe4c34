"""Export the rows of a version as columns: an Arrow IPC file or Parquet, streamed batch by batch."""

# n rows of a batch, D dimension
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from springtide.app.version_log.read.id_dictionary import IdDictionary, feature_name
from springtide.app.version_log.read.row_image import RowImage
from springtide.app.version_log.tables import LogTable, table_holding
from springtide_client.format.records import version_name
from springtide_client.keys import CROSSES
from springtide_client.rows.row_layer import RowLayer

BATCH_ROWS = 65_536


def write_arrow(image: RowImage, path: Path, feature: int | None) -> int:
    """Write an Arrow IPC file; return the number of rows."""
    schema, num_rows = arrow_schema(image, feature), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in _batches(image, schema, feature):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def write_parquet(image: RowImage, path: Path, feature: int | None) -> int:
    """Write a Parquet file; return the number of rows."""
    schema, num_rows = arrow_schema(image, feature), 0
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as writer:
        for batch in _batches(image, schema, feature):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def vector_columns(image: RowImage, feature: int | None) -> dict[str, LogTable]:
    """Return the columns with vectors, each of one table: `vector` for the main one, or for that of the only feature.

    The others are `vector_NAME`; in each row all but one are null.
    """
    if feature is not None:
        return {"vector": table_holding(image.tables, feature)}
    return {f"vector_{table.name}" if table.name else "vector": table for table in image.tables}


def arrow_schema(image: RowImage, feature: int | None = None) -> Any:
    """Return the columns; `id_string` is null if the id is a number or its string is not known."""
    tables = vector_columns(image, feature)
    vectors = [
        pa.field(name, pa.list_(pa.field("item", pa.float32(), nullable=False), table.spec.dim), len(tables) > 1)
        for name, table in tables.items()
    ]
    fields = [
        pa.field("feature", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("id_string", pa.string()),
        *vectors,
        pa.field("count", pa.int64(), nullable=False),
        pa.field("last_seen_ms", pa.int64(), nullable=False),
    ]
    return pa.schema(fields, {"springtide": description(image)})


def description(image: RowImage) -> str:
    """Return which version it is, as JSON."""
    base = image.base.manifest
    document = {
        "version": image.number,
        "name": version_name(image.number),
        "checksum": f"{image.checksum:016x}",
        "schema": base.schema,
        "table": base.table,
        "tables": base.tables,
        "model": base.model,
        "meta": image.meta,
    }
    return msgspec.json.encode(document).decode()


def _batches(image: RowImage, schema: Any, feature: int | None) -> Iterator[Any]:
    finder = IdDictionary(image.base, image.versions)
    # the same dictionary in all batches: an Arrow file stores it once
    numbers = [*range(image.schema.unused_number), CROSSES]
    names = pa.array([feature_name(image.schema, number) for number in numbers], pa.string())
    for name, table in vector_columns(image, feature).items():
        for rows in image.rows(feature, table=table):
            for start in range(0, len(rows), BATCH_ROWS):
                yield _batch(rows.take(slice(start, start + BATCH_ROWS)), name, finder, names, schema)


def _batch(rows: RowLayer, column: str, finder: IdDictionary, names: Any, schema: Any) -> Any:
    """Return a batch of rows of one table, whose vectors are in `column`."""
    types = {field.name: field.type for field in schema if field.name.startswith("vector")}
    content = pa.array(np.ascontiguousarray(rows.value).reshape(-1))
    vectors = {name: pa.nulls(len(rows), type) for name, type in types.items()}
    vectors[column] = pa.FixedSizeListArray.from_arrays(content, type=types[column])
    places = np.minimum(rows.feature, len(names) - 1).astype(np.int16)  # crosses come last
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(places), names),
        pa.array(rows.id),
        pa.array(finder.find(rows.feature, rows.id), pa.string()),
        *vectors.values(),
        pa.array(rows.count),
        pa.array(rows.last_seen),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
