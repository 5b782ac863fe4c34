"""The safetensors layout in numpy: a length, a JSON header, raw bytes. Knows no meaning of any tensor, never pickles.

Format: https://github.com/huggingface/safetensors. The header is padded with spaces and tensors stand widest dtype
first, so that every array is aligned where the file is mapped.
"""

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

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F16": np.dtype("<f2"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("bool"),
}
READ_AHEAD_SHARE = 8  # of the machine's memory: a file up to an eighth of it is read ahead
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorShape(NamedTuple):
    """What the header says of one tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class TensorLayout(NamedTuple):
    """Where the tensors of one file or payload stand."""

    head: bytes  # the length and the JSON header
    begin: dict[str, int]  # from the start of the file, in the order of the bytes
    num_bytes: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensor_layout(tensors: Mapping[str, TensorShape], metadata: Mapping[str, str] | None = None) -> TensorLayout:
    """Where each tensor will stand; ValueError for a dtype that the format has no name for."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets, end = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        if tensor.dtype not in NAMES:
            raise ValueError(f"tensor {name!r} has dtype {tensor.dtype}, which the log cannot hold")
        offsets[name], begin, end = end, end, end + tensor.num_bytes
        header[name] = _Entry(NAMES[tensor.dtype], tensor.shape, (begin, end))
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return TensorLayout(head, {name: len(head) + begin for name, begin in offsets.items()}, len(head) + end)


def shape_of(array: Array) -> TensorShape:
    """What a header would say of the array."""
    return TensorShape(array.dtype, array.shape)


def encode_tensors(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> list[memoryview]:
    """The pieces whose concatenation is the file; the arrays among them are not copied unless they are strided."""
    plain: Arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    layout = tensor_layout({name: shape_of(array) for name, array in plain.items()}, metadata)
    return [memoryview(layout.head), *(array_bytes(plain[name]) for name in layout.begin)]


def decode_tensors(buffer: bytes | memoryview | mmap.mmap) -> tuple[Arrays, dict[str, str]]:
    """Read-only arrays over the buffer, and the metadata; LogError where the layout is broken."""
    try:
        start = 8 + int.from_bytes(buffer[:8], "little")
        if start < 8 or start > len(buffer):
            raise LogError(f"tensor header of {start - 8} bytes in a file of {len(buffer)}")
        header = msgspec.json.decode(buffer[8:start], type=dict[str, msgspec.Raw])
        metadata_text = header.pop("__metadata__", None)
        metadata = msgspec.json.decode(metadata_text, type=dict[str, str]) if metadata_text else {}
        arrays: Arrays = {}
        for name, text in header.items():
            entry = msgspec.json.decode(text, type=_Entry)
            tensor = TensorShape(DTYPES[entry.dtype], entry.shape)
            begin, end = entry.data_offsets
            if begin < 0 or end - begin != tensor.num_bytes or start + end > len(buffer):
                raise LogError(f"tensor {name!r} stands outside its file")
            array: Array = np.ndarray(tensor.shape, tensor.dtype, buffer, start + begin)
            array.flags.writeable = False
            arrays[name] = array
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise LogError(f"a tensor file cannot be read: {error}") from None
    return arrays, metadata


def map_tensors(path: Path) -> Arrays:
    """The arrays of a file, memory-mapped: nothing is read until it is touched. The file may be unlinked meanwhile."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < 8:
            raise LogError(f"{path} is cut short")
        return decode_tensors(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[0]


def advise_random_access(array: Array) -> None:
    """Of a mapped file: the kernel reads the pages that are touched, not the megabytes around them.

    What is in no memory yet is read ahead once, where it is small beside the machine's memory.
    """
    pages: Any = array.base  # whoever owns the memory, not only arrays
    if not isinstance(pages, mmap.mmap) or not hasattr(pages, "madvise"):
        return
    pages.madvise(mmap.MADV_RANDOM)
    if len(pages) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // READ_AHEAD_SHARE:
        pages.madvise(mmap.MADV_WILLNEED)


def array_bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data
