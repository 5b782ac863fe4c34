"""Rows in a mapped file instead of memory: the file is unlinked at once, so it is gone when its process is."""

# n rows
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from springtide_client.errors import LogError
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import TensorShape, map_tensors
from springtide_client.rows.layers import aligned_chunks, merge_layers
from springtide_client.rows.row_block import RowBlock, column_shapes


def write_disk_layer(layers: Sequence[RowBlock], dim: int, folder: Path | None, *, max_bytes: int) -> RowBlock:
    """Merge layers, given newest first, into one whose arrays are mapped from a file.

    The file is created in `folder`, by default the system's temporary folder. LogError when it would exceed
    `max_bytes`; OSError when the disk is full.
    """
    chunks = aligned_chunks([layer.keys_only() for layer in layers])
    num_rows = sum(len(merge_layers(*reversed(chunk))) for chunk in chunks)
    shapes = column_shapes(num_rows, dim, layers[0].state.shape[1])
    shapes["tombstone"] = TensorShape(np.dtype(np.bool_), (num_rows,))
    shapes["known_hash"] = TensorShape(np.dtype(np.uint64), (num_rows,))
    num_bytes = sum(shape.num_bytes for shape in shapes.values())
    if num_bytes > max_bytes:
        raise LogError(
            f"{num_rows:,} rows changed since the base take {num_bytes:,} bytes on disk, {max_bytes:,} are allowed: "
            "raise cache_disk_bytes, or let the compactor write bases more often (base_minutes)"
        )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="layer-", dir=folder)
    os.close(descriptor)
    try:
        _write_rows(Path(name), layers, shapes)
        return RowBlock(**map_tensors(Path(name))) if num_rows else layers[0].take(slice(0, 0))
    finally:
        os.unlink(name)


def _write_rows(path: Path, layers: Sequence[RowBlock], shapes: dict[str, TensorShape]) -> None:
    writer = TensorWriter(path, shapes)
    first_row = 0
    try:
        for chunk in aligned_chunks(layers):
            rows = merge_layers(*reversed(chunk))
            columns = rows.columns() | {"tombstone": rows.tombstones(), "known_hash": rows.key_hash}
            for name, array in columns.items():
                writer.write(name, first_row, array)
            first_row += len(rows)
    finally:
        writer.close()
