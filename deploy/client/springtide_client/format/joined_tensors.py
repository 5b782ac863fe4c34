"""Tensors whose rows are in several files, one after the other, mapped as one array: nothing is loaded.

The whole pages of each file are mapped behind those of the file before. Where one file ends and the next begins within
a page, that page is copied. This takes tensors that have their places (see `tensor_layout`); others are copied whole.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide_client.errors import LogError
from springtide_client.format.tensors import (
    PADDING,
    Array,
    Arrays,
    TensorShape,
    map_rows,
    map_tensors,
    read_layout,
)

PAGE = mmap.ALLOCATIONGRANULARITY
MAP_FIXED = 0x10  # Linux and macOS
FAILED = ctypes.c_void_p(-1).value
MAX_READ_BYTES = 1 << 30  # the kernel copies no more at once


class FileRows(NamedTuple):
    """Some rows of every tensor of one file; None: all."""

    path: Path
    rows: slice | None


class _Piece(NamedTuple):
    """Some bytes of a file."""

    descriptor: int
    offset: int
    num_bytes: int


def map_joined(files: Sequence[FileRows]) -> Arrays:
    """Return the arrays of several files, end to end, read-only; LogError if they do not fit together.

    There is at least one file. As with `map_tensors`, files may be unlinked meanwhile.
    """
    if len(files) == 1:
        path, rows = files[0]
        return map_tensors(path) if rows is None else map_rows(path, rows)
    with ExitStack() as stack:
        opened = [_TensorFile(stack.enter_context(path.open("rb")).fileno(), path, rows) for path, rows in files]
        names = [name for name in opened[0].layout if not name.startswith(PADDING)]
        return {name: _join(name, opened) for name in names}


class _TensorFile:
    """An open file."""

    def __init__(self, descriptor: int, path: Path, rows: slice | None) -> None:
        self.descriptor, self.path, self._rows = descriptor, path, rows
        num_bytes = os.fstat(descriptor).st_size
        if num_bytes < 8:
            raise LogError(f"{path} is truncated")
        try:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as whole:
                self.layout, _ = read_layout(whole, num_bytes)
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise LogError(f"{path} cannot be read: {error}") from None

    def kind(self, name: str) -> TensorShape:
        """Return a tensor's dtype and the shape of its rows; LogError if there is none."""
        if name not in self.layout:
            raise LogError(f"{self.path} lacks the tensor {name!r}")
        dtype, shape = self.layout[name][0]
        return TensorShape(dtype, shape[1:])

    def num_rows(self, name: str) -> int:
        """Return the number of rows that are wanted of a tensor."""
        return self.layout[name][0].shape[0] if self._rows is None else self._rows.stop - self._rows.start

    def piece(self, name: str) -> _Piece:
        """Return where these rows are."""
        row_bytes, first = self.kind(name).num_bytes, 0 if self._rows is None else self._rows.start
        offset = self.layout[name][1] + first * row_bytes
        return _Piece(self.descriptor, offset, self.num_rows(name) * row_bytes)


def _join(name: str, files: Sequence[_TensorFile]) -> Array:
    """Return the wanted rows of one tensor of all files."""
    kind = files[0].kind(name)
    if any(file.kind(name) != kind for file in files):
        raise LogError(f"{files[0].path.parent}: the tensor {name!r} has not the same type in all its files")
    shape = (sum(file.num_rows(name) for file in files), *kind.shape)
    pieces = [piece for file in files if (piece := file.piece(name)).num_bytes]
    if not pieces:
        array: Array = np.empty(shape, kind.dtype)
    else:
        # an address as aligned as numbers of this size need to be; files of other writers may have them anywhere
        skipped = position = 0 if pieces[0].offset % kind.dtype.itemsize else pieces[0].offset % PAGE
        num_bytes = skipped + sum(piece.num_bytes for piece in pieces)
        # owns the addresses: read-only and private, so that it takes no memory before a page of it is copied
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
        for piece in pieces:
            _place(_address_of(pages), position, piece)
            position += piece.num_bytes
        array = np.ndarray(shape, kind.dtype, pages, skipped)
    array.flags.writeable = False
    return array


def _place(address: int, position: int, piece: _Piece) -> None:
    """Map the whole pages of a piece at `position` of the area that begins at `address`, and copy the rest."""
    end = position + piece.num_bytes
    first, last = -(-position // PAGE) * PAGE, end // PAGE * PAGE
    if (piece.offset - position) % PAGE or first >= last:
        _copy(address, position, end, piece.descriptor, piece.offset)
        return
    offset = piece.offset - position  # of the file, where the area begins
    _call(
        "mmap",
        address + first,
        last - first,
        mmap.PROT_READ,
        mmap.MAP_SHARED | MAP_FIXED,
        piece.descriptor,
        offset + first,
    )
    _copy(address, position, first, piece.descriptor, piece.offset)
    _copy(address, last, end, piece.descriptor, offset + last)


def _copy(address: int, start: int, end: int, descriptor: int, offset: int) -> None:
    """Read bytes of a file into an area, whose pages there are its own."""
    if start == end:
        return
    first = start // PAGE * PAGE
    _call("mprotect", address + first, end - first, mmap.PROT_READ | mmap.PROT_WRITE)
    while start < end:
        length = min(end - start, MAX_READ_BYTES)
        num_read = os.preadv(descriptor, [(ctypes.c_char * length).from_address(address + start)], offset)
        if not num_read:
            raise LogError("a tensor file became shorter while it was read")
        start, offset = start + num_read, offset + num_read


def _address_of(pages: mmap.mmap) -> int:
    address: int = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    return address


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library on memory; OSError if it fails."""
    result = _FUNCTIONS[name](*arguments)
    if result in (FAILED, -1):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _functions() -> dict[str, Any]:
    library = ctypes.CDLL(None, use_errno=True)
    mmap_, mprotect = library.mmap, library.mprotect
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    mmap_.argtypes, mmap_.restype = [pointer, size, number, number, number, ctypes.c_int64], pointer
    mprotect.argtypes, mprotect.restype = [pointer, size, number], number
    return {"mmap": mmap_, "mprotect": mprotect}


_FUNCTIONS = _functions()
