"""Tensors whose rows are in several files, one after the other, mapped as one array: nothing is loaded.

The whole pages of each file are mapped behind those of the file before. Where one file ends and the next begins within
a page, that page is copied. This takes tensors that have their places (see `tensor_layout`); others are copied whole,
as those of small files are.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
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
    """Some bytes of a file, and where they begin in all wanted bytes of a tensor."""

    offset: int
    num_bytes: int
    begin: int


def map_joined(files: Sequence[FileRows]) -> Arrays:
    """Return the arrays of several files, end to end, read-only; LogError if they do not fit together.

    There is at least one file. As with `map_tensors`, files may be unlinked meanwhile.
    """
    if len(files) == 1:
        path, rows = files[0]
        return map_tensors(path) if rows is None else map_rows(path, rows)
    parts = [_TensorFile(*file) for file in files]
    joined = [_Joined(name, parts) for name in parts[0].layout if not name.startswith(PADDING)]
    for number, part in enumerate(parts):  # one file is open at a time: there may be more than a process may have
        if any(one.pieces[number].num_bytes for one in joined):
            with part.path.open("rb") as file:
                for one in joined:
                    one.place(number, file.fileno())
    return {one.name: one.array() for one in joined}


class _TensorFile:
    """Where a file has its tensors."""

    def __init__(self, path: Path, rows: slice | None) -> None:
        self.path, self._rows = path, rows
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes < 8:
                raise LogError(f"{path} is truncated")
            try:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
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

    def offset(self, name: str) -> int:
        """Return where these rows begin."""
        return self.layout[name][1] + (0 if self._rows is None else self._rows.start) * self.kind(name).num_bytes


class _Joined:
    """One tensor of all files."""

    def __init__(self, name: str, files: Sequence[_TensorFile]) -> None:
        self.name, self._kind = name, files[0].kind(name)
        if any(file.kind(name) != self._kind for file in files):
            raise LogError(f"{files[0].path.parent}: the tensor {name!r} has not the same type in all its files")
        self._num_rows, self.pieces = 0, list[_Piece]()
        row_bytes = self._kind.num_bytes
        for file in files:
            num_rows = file.num_rows(name)
            self.pieces.append(_Piece(file.offset(name), num_rows * row_bytes, self._num_rows * row_bytes))
            self._num_rows += num_rows
        # the address of the array within its page is the one that fits the largest piece: small files have no places
        largest = max(self.pieces, key=lambda piece: piece.num_bytes)
        self._skipped = (largest.offset - largest.begin) % PAGE
        if self._skipped % self._kind.dtype.itemsize:  # numbers of this size are aligned; other writers' need not be
            self._skipped = 0
        num_bytes = self._num_rows * row_bytes
        # owns the addresses: read-only and private, so that it takes no memory before a page of it is copied
        self._pages = (
            mmap.mmap(-1, self._skipped + num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
            if num_bytes
            else None
        )

    def place(self, number: int, descriptor: int) -> None:
        """Map or copy what the file of this number has, which is open."""
        piece = self.pieces[number]
        if self._pages is not None and piece.num_bytes:
            _place(_address_of(self._pages), self._skipped + piece.begin, descriptor, piece)

    def array(self) -> Array:
        """Return the array, once all files have been placed."""
        shape = (self._num_rows, *self._kind.shape)
        array: Array = np.empty(shape, self._kind.dtype)
        if self._pages is not None:
            array = np.ndarray(shape, self._kind.dtype, self._pages, self._skipped)
        array.flags.writeable = False
        return array


def _place(address: int, position: int, descriptor: int, piece: _Piece) -> None:
    """Map the whole pages of a piece at `position` of the area that begins at `address`, and copy the rest."""
    end = position + piece.num_bytes
    first, last = -(-position // PAGE) * PAGE, end // PAGE * PAGE
    if (piece.offset - position) % PAGE or first >= last:
        _copy(address, position, end, descriptor, piece.offset)
        return
    offset = piece.offset - position  # of the file, where the area begins
    _call(
        "mmap",
        address + first,
        last - first,
        mmap.PROT_READ,
        mmap.MAP_SHARED | MAP_FIXED,
        descriptor,
        offset + first,
    )
    _copy(address, position, first, descriptor, piece.offset)
    _copy(address, last, end, descriptor, offset + last)


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
