"""Export the rows of a version as columns: an Arrow IPC file or Parquet, streamed batch by batch."""

# n rows of a batch, D dimension
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from springtide_client.format.records import version_name
from springtide_client.rows.row_layer import RowLayer

from app.version_log.read.id_dictionary import IdDictionary, feature_name
from app.version_log.read.row_image import RowImage

BATCH_ROWS = 65_536


def write_arrow(image: RowImage, path: Path, feature: int | None) -> int:
    """Write an Arrow IPC file; return the number of rows."""
    schema, num_rows = arrow_schema(image), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in _batches(image, schema, feature):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def write_parquet(image: RowImage, path: Path, feature: int | None) -> int:
    """Write a Parquet file; return the number of rows."""
    schema, num_rows = arrow_schema(image), 0
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as writer:
        for batch in _batches(image, schema, feature):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def arrow_schema(image: RowImage) -> Any:
    """Return the columns; `id_string` is null if the id is a number or its string is not known."""
    fields = [
        pa.field("feature", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("id_string", pa.string()),
        pa.field("vector", pa.list_(pa.field("item", pa.float32(), nullable=False), image.dim), nullable=False),
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
        "model": base.model,
        "meta": image.meta,
    }
    return msgspec.json.encode(document).decode()


def _batches(image: RowImage, schema: Any, feature: int | None) -> Iterator[Any]:
    finder = IdDictionary(image.base, image.versions)
    # the same dictionary in all batches: an Arrow file stores it once
    names = pa.array([feature_name(image.schema, number) for number in range(image.schema.unused_number)], pa.string())
    for rows in image.rows(feature):
        for start in range(0, len(rows), BATCH_ROWS):
            yield _batch(rows.take(slice(start, start + BATCH_ROWS)), finder, names, schema)


def _batch(rows: RowLayer, finder: IdDictionary, names: Any, schema: Any) -> Any:
    vectors = pa.array(np.ascontiguousarray(rows.value).reshape(-1))
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(rows.feature.astype(np.int16)), names),
        pa.array(rows.id),
        pa.array(finder.find(rows.feature, rows.id), pa.string()),
        pa.FixedSizeListArray.from_arrays(vectors, type=schema.field("vector").type),
        pa.array(rows.count),
        pa.array(rows.last_seen),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
