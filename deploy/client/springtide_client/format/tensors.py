"""The safetensors file layout in numpy: a length, a JSON header, raw bytes. Never pickles.

Format: https://github.com/huggingface/safetensors. The header is padded with spaces and the tensors with the widest
dtype come first, so that every array is aligned when the file is memory-mapped.
"""

import ctypes
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide_client.errors import LogError

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # numpy has no bfloat16: these are its bits, the upper half of a float32
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("bool"),
}
PADDING = "padding."  # bytes between tensors that have their places, each under the name of the tensor behind it
PLACE_BYTES = 1 << 16  # a place is an offset modulo this: a multiple of the page size of all processors in use
HEAD_BYTES = 1 << 12  # the length and the header of a file whose tensors have places
READAHEAD_FRACTION = 8  # a file of at most 1/8 of the machine's memory is read ahead
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorShape(NamedTuple):
    """The dtype and the shape of one tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class TensorLayout(NamedTuple):
    """The header of one file, and the offset of each tensor."""

    head: bytes  # the length and the JSON header
    begin: dict[str, int]  # tensor name -> offset from the start of the file, in the order of the offsets
    num_bytes: int


class _Metadata(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(default_factory=dict, name="__metadata__")


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensor_layout(
    tensors: Mapping[str, TensorShape],
    metadata: Mapping[str, str] | None = None,
    places: Mapping[str, int] | None = None,
) -> TensorLayout:
    """Lay the tensors out in one file; ValueError for a dtype that the format cannot hold.

    `places`: of each tensor, the offset that it shall have modulo PLACE_BYTES. Then a tensor that goes on in another
    file can be mapped as one array, if its place there is the one after its end here.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets, end = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        if tensor.dtype not in NAMES:
            raise ValueError(f"tensor {name!r} has dtype {tensor.dtype}, which the log cannot hold")
        if places is not None and (padding := (places[name] - HEAD_BYTES - end) % PLACE_BYTES):
            header[PADDING + name] = _Entry("U8", (padding,), (end, end + padding))
            end += padding
        offsets[name], begin, end = end, end, end + tensor.num_bytes
        header[name] = _Entry(NAMES[tensor.dtype], tensor.shape, (begin, end))
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8 if places is None else HEAD_BYTES - 8 - len(text))
    head = len(text).to_bytes(8, "little") + text
    if places is not None and len(head) != HEAD_BYTES:
        raise ValueError(f"{len(tensors)} tensors with places need a header of {len(head)} bytes, beyond {HEAD_BYTES}")
    return TensorLayout(head, {name: len(head) + begin for name, begin in offsets.items()}, len(head) + end)


def shape_of(array: Array) -> TensorShape:
    """Return the dtype and the shape of an array."""
    return TensorShape(array.dtype, array.shape)


def encode_tensors(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> list[memoryview]:
    """Return the pieces whose concatenation is the file. Contiguous arrays are not copied."""
    plain: Arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    layout = tensor_layout({name: shape_of(array) for name, array in plain.items()}, metadata)
    return [memoryview(layout.head), *(array_bytes(plain[name]) for name in layout.begin)]


def decode_metadata(buffer: bytes | memoryview) -> dict[str, str]:
    """Return the metadata alone; LogError when the layout is invalid."""
    try:
        text = bytes(buffer[8 : 8 + int.from_bytes(buffer[:8], "little")])
        return msgspec.json.decode(text, type=_Metadata).metadata
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise LogError(f"a tensor file cannot be read: {error}") from None


def decode_tensors(buffer: bytes | memoryview | mmap.mmap) -> tuple[Arrays, dict[str, str]]:
    """Return read-only arrays over the buffer, and the metadata; LogError when the layout is invalid.

    A bfloat16 tensor becomes a float32 array of its own.
    """
    try:
        layout, metadata = read_layout(buffer, len(buffer))
        arrays: Arrays = {}
        for name, (tensor, begin) in layout.items():
            array: Array = np.ndarray(tensor.shape, tensor.dtype, buffer, begin)
            if tensor.dtype == BFLOAT16:
                array = from_bfloat16(array)
            array.flags.writeable = False
            arrays[name] = array
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise LogError(f"a tensor file cannot be read: {error}") from None
    return arrays, metadata


def read_layout(
    buffer: bytes | memoryview | mmap.mmap, num_bytes: int
) -> tuple[dict[str, tuple[TensorShape, int]], dict[str, str]]:
    """Return each tensor's shape and where it begins in a file of so many bytes, and the metadata.

    LogError when a tensor lies outside the file; MsgspecError, KeyError or ValueError when the header is invalid.
    """
    start = 8 + int.from_bytes(buffer[:8], "little")
    if start < 8 or start > num_bytes:
        raise LogError(f"tensor header of {start - 8} bytes in a file of {num_bytes}")
    header = msgspec.json.decode(buffer[8:start], type=dict[str, msgspec.Raw])
    metadata_text = header.pop("__metadata__", None)
    metadata = msgspec.json.decode(metadata_text, type=dict[str, str]) if metadata_text else {}
    layout: dict[str, tuple[TensorShape, int]] = {}
    for name, text in header.items():
        entry = msgspec.json.decode(text, type=_Entry)
        tensor = TensorShape(DTYPES[entry.dtype], entry.shape)
        begin, end = entry.data_offsets
        if begin < 0 or end - begin != tensor.num_bytes or start + end > num_bytes:
            raise LogError(f"tensor {name!r} lies outside its file")
        layout[name] = tensor, start + begin
    return layout, metadata


def to_bfloat16(array: npt.NDArray[np.float32]) -> Array:
    """Round float32 to the nearest bfloat16, ties to even; a NaN stays one."""
    array = np.asarray(array, np.float32)
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16).view(BFLOAT16)


def from_bfloat16(array: Array) -> npt.NDArray[np.float32]:
    """Return the float32 values of bfloat16 bits."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def map_tensors(path: Path) -> Arrays:
    """Return the arrays of a memory-mapped file. Pages are read on first access; the file may be unlinked meanwhile."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < 8:
            raise LogError(f"{path} is truncated")
        return decode_tensors(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[0]


def map_rows(path: Path, rows: slice) -> Arrays:
    """Return some rows of each array of a file, in maps of their own: of the rest nothing is mapped."""
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            layout, _ = read_layout(whole, num_bytes)
        arrays: Arrays = {}
        for name, (tensor, begin) in layout.items():
            shape = (rows.stop - rows.start, *tensor.shape[1:])
            row_bytes = tensor.num_bytes // tensor.shape[0] if tensor.shape[0] else 0
            begin, length = begin + rows.start * row_bytes, shape[0] * row_bytes
            skipped = begin % mmap.ALLOCATIONGRANULARITY
            array: Array = np.empty(shape, tensor.dtype)
            if length:
                pages = mmap.mmap(file.fileno(), skipped + length, access=mmap.ACCESS_READ, offset=begin - skipped)
                array = np.ndarray(shape, tensor.dtype, pages, skipped)
            array.flags.writeable = False
            arrays[name] = array
    return arrays


def advise_random_access(array: Array) -> None:
    """Turn off the kernel's readahead for a mapped array, so that a row costs its own pages, not the megabytes around.

    A file that is small beside the machine's memory is instead read ahead once, as a whole. Other arrays are ignored.
    """
    pages: Any = array.base
    if not isinstance(pages, mmap.mmap) or not hasattr(pages, "madvise"):
        return
    pages.madvise(mmap.MADV_RANDOM)
    if len(pages) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // READAHEAD_FRACTION:
        _read_ahead(pages)


def _read_ahead(pages: mmap.mmap) -> None:
    """Ask the kernel to read the whole file. Called without the GIL, for it takes ms; `mmap.madvise` would keep it."""
    start = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(pages)), mmap.MADV_WILLNEED)


def array_bytes(array: Array) -> memoryview:
    """Return the bytes of a contiguous array without copying them."""
    return array.reshape(-1).view(np.uint8).data
