"""Write tensor files piece by piece, in the layout of tensors.py."""

import ctypes
import os
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from springtide_client.format.checksums import combine_crc32
from springtide_client.format.tensors import Array, TensorShape, array_bytes, tensor_layout
from springtide_client.system.files import sync_descriptor

SYNC_FILE_RANGE_WRITE = 2
MIN_PARALLEL_BYTES = 1 << 20  # smaller blocks are not worth a second thread
MIN_WRITEBACK_BYTES = 1 << 18  # smaller pieces are not worth a writeback request

Piece = tuple[str, int, memoryview]  # tensor name, offset in the file, bytes


class TensorWriter:
    """Writes a tensor file piece by piece, in any order, so that no tensor has to fit in memory.

    When the pieces of each tensor arrive in row order, `crc32` is known without reading the file again.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, TensorShape],
        metadata: Mapping[str, str] | None = None,
        places: Mapping[str, int] | None = None,
    ) -> None:
        """`places`: as `tensor_layout` takes them."""
        self._tensors = dict(tensors)
        self._layout = tensor_layout(tensors, metadata, places)
        self._crcs = dict.fromkeys(self._layout.begin, 0)
        self._ends = dict(self._layout.begin)  # offset up to which each tensor is written without a gap
        self._in_order = True
        self._file = path.open("wb", buffering=0)
        self._pool: ThreadPoolExecutor | None = None
        try:
            self._write_at(0, self._layout.head)
            os.ftruncate(self._file.fileno(), self._layout.num_bytes)
        except BaseException:
            self._file.close()
            raise

    @property
    def num_bytes(self) -> int:
        """The size of the whole file."""
        return self._layout.num_bytes

    @property
    def crc32(self) -> int | None:
        """The checksum of the whole file; None while pieces are missing, or after pieces out of order."""
        sizes = {name: tensor.num_bytes for name, tensor in self._tensors.items()}
        begin = self._layout.begin
        if not self._in_order or any(self._ends[name] != begin[name] + sizes[name] for name in begin):
            return None
        end = len(self._layout.head)
        parts = [(zlib.crc32(self._layout.head), end)]
        for name in begin:
            padding = begin[name] - end
            parts += [(zlib.crc32(bytes(padding)), padding), (self._crcs[name], sizes[name])]
            end = begin[name] + sizes[name]
        return combine_crc32(parts)

    def write(self, name: str, first_row: int, rows: Array) -> None:
        """Write rows from row `first_row` of the tensor on; ValueError when they do not fit its shape."""
        self.write_block(first_row, {name: rows})

    def write_block(self, first_row: int, tensors: Mapping[str, Array]) -> None:
        """Write rows of several tensors. A second thread computes their checksums meanwhile."""
        pieces = [self._piece(name, first_row, rows) for name, rows in tensors.items()]
        if sum(len(data) for _, _, data in pieces) < MIN_PARALLEL_BYTES:
            self._add_checksums(pieces)
            self._write_pieces(pieces)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "checksums")
        checksums = self._pool.submit(self._add_checksums, pieces)
        try:
            self._write_pieces(pieces)
        finally:
            checksums.result()

    def _piece(self, name: str, first_row: int, rows: Array) -> Piece:
        dtype, shape = self._tensors[name]
        if not shape:  # a single number is a row of itself
            shape, rows = (1,), rows.reshape(1)
        if rows.shape[1:] != shape[1:] or first_row + len(rows) > shape[0]:
            raise ValueError(f"{rows.shape} at row {first_row} does not fit {name!r} of {shape}")
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        data = array_bytes(np.asarray(rows, dtype, order="C"))
        offset = self._layout.begin[name] + first_row * row_bytes
        self._in_order = self._in_order and offset == self._ends[name]
        self._ends[name] = offset + len(data)
        return name, offset, data

    def _add_checksums(self, pieces: Sequence[Piece]) -> None:
        for name, _, data in pieces:
            self._crcs[name] = zlib.crc32(data, self._crcs[name])

    def _write_pieces(self, pieces: Sequence[Piece]) -> None:
        for _, offset, data in pieces:
            self._write_at(offset, data)
            if len(data) >= MIN_WRITEBACK_BYTES:
                start_writeback(self._file.fileno(), offset, len(data))

    def close(self) -> None:
        """fsync and close the file; it is closed even when the fsync fails."""
        if self._pool is not None:
            self._pool.shutdown()
        try:
            sync_descriptor(self._file.fileno())
        finally:
            self._file.close()

    def _write_at(self, offset: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written


def start_writeback(descriptor: int, offset: int, num_bytes: int) -> None:
    """Have the kernel start writing these bytes to the disk, so that a later fsync waits for less. Linux only."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(num_bytes), SYNC_FILE_RANGE_WRITE)


_sync_file_range: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
