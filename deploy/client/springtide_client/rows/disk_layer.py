"""Changed rows of one process in a file without a name: they leave its memory, and the file goes with the process."""

# n rows
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from springtide_client.errors import LogError
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import TensorShape, map_tensors
from springtide_client.model.view import View
from springtide_client.rows.layers import RowLayer, empty_layer, merge_layers

# rows of the largest layer that are merged at a time
CHUNK_ROWS = 65_536


class DiskLayers:
    """Bounds the memory of views."""

    def __init__(self, folder: Path | None, *, max_bytes: int = 20 << 30) -> None:
        """Files are made in `folder`, by default in the system's temporary one, and unlinked once they are mapped.

        `max_bytes`: of one file. While the next is written there are two.
        """
        self._folder = folder
        self._max_bytes = max_bytes

    def limit_memory(self, view: View, max_bytes: int) -> View:
        """The same version within `max_bytes` of memory: where it has more, its layers become one mapped file.

        LogError where what cannot move is more; OSError where the disk is full.
        """
        if view.num_bytes <= max_bytes:
            return view
        if view.fixed_bytes > max_bytes:
            needed = 2 * view.fixed_bytes
            what = "the dense parameters" + (" and the admission sketch" if view.admission_counts.num_bytes else "")
            raise LogError(f"{what} do not fit into cache_bytes: give more than {needed:,}")
        if not view.layers:
            return view
        older = () if view.disk_layer is None else (view.disk_layer,)
        return replace(view, layers=(), disk_layer=self._write((*view.layers, *older), view.dim))

    def _write(self, layers: Sequence[RowLayer], dim: int) -> RowLayer:
        num_rows = sum(
            len(merge_newest_first(chunk)) for chunk in aligned_chunks([layer.keys_only() for layer in layers])
        )
        shapes = {
            "mixed": TensorShape(np.dtype(np.uint64), (num_rows,)),
            "feature": TensorShape(np.dtype(np.uint16), (num_rows,)),
            "id": TensorShape(np.dtype(np.int64), (num_rows,)),
            "value": TensorShape(np.dtype(np.float32), (num_rows, dim)),
            "count": TensorShape(np.dtype(np.int64), (num_rows,)),
            "last_seen": TensorShape(np.dtype(np.int64), (num_rows,)),
            "forgotten": TensorShape(np.dtype(np.bool_), (num_rows,)),
        }
        num_bytes = sum(shape.num_bytes for shape in shapes.values())
        if num_bytes > self._max_bytes:
            raise LogError(
                f"{num_rows:,} rows changed since the base take {num_bytes:,} bytes on disk, {self._max_bytes:,} are "
                "allowed: give more cache_disk_bytes, or let the merger make bases more often (base_minutes)"
            )
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="layer-", dir=self._folder)
        os.close(descriptor)
        try:
            writer = TensorWriter(Path(name), shapes)
            at = 0
            try:
                for chunk in aligned_chunks(layers):
                    rows = merge_newest_first(chunk)
                    marks_n = np.zeros(len(rows), np.bool_) if rows.forgotten is None else rows.forgotten
                    columns = {name: getattr(rows, name) for name in shapes if name != "forgotten"}
                    for column, array in {**columns, "forgotten": marks_n}.items():
                        writer.write(column, at, array)
                    at += len(rows)
            finally:
                writer.close()
            return RowLayer(**map_tensors(Path(name))) if num_rows else empty_layer(dim)
        finally:
            os.unlink(name)


def aligned_chunks(layers: Sequence[RowLayer]) -> Iterator[list[RowLayer]]:
    """The layers cut at the same keys, in the order of the keys, a bounded number of rows at a time."""
    largest = max(layers, key=len)
    bounds = largest.mixed[CHUNK_ROWS::CHUNK_ROWS]
    cuts = [[0, *layer.mixed.searchsorted(bounds).tolist(), len(layer)] for layer in layers]
    for part in range(len(bounds) + 1):
        yield [layer.take(slice(cut[part], cut[part + 1])) for layer, cut in zip(layers, cuts, strict=True)]


def merge_newest_first(layers: Sequence[RowLayer]) -> RowLayer:
    """One layer that answers like all of them, newest first."""
    return merge_layers(*reversed(layers))
