"""Where the join keeps what it holds: in memory up to a cap, then in scratch files that are mapped into memory.

A file has no name once it is open: it is gone with the process, however that ends. A restart reads Kafka again.
"""

import logging
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
NO_LIMIT = 1 << 62
ZEROS = 1 << 20  # bytes that are written at once where a file cannot be given its size otherwise

logger = logging.getLogger(__name__)

# by name: the shape and the type of an array
Shapes = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]


@dataclass
class Block:
    """Arrays that are held and given back together."""

    arrays: dict[str, npt.NDArray[Any]]
    num_bytes: int
    is_on_disk: bool


class HeldBytes:
    """Hands out arrays and counts them. One thread."""

    def __init__(self, memory_bytes: int = NO_LIMIT, disk_bytes: int = 0, folder: Path | None = None) -> None:
        """`folder`: of the scratch files; made when the first one is needed. None: memory alone."""
        self.memory_bytes, self.disk_bytes, self._folder = memory_bytes, disk_bytes if folder else 0, folder
        self.memory_used = self.disk_used = 0

    def fits_in_memory(self, num_bytes: int) -> bool:
        """True if so much more stays within the cap of memory."""
        return self.memory_used + num_bytes <= self.memory_bytes

    def fits(self, num_bytes: int) -> bool:
        """True if so much more stays within one of the caps, and the disk has room."""
        return self.fits_in_memory(num_bytes) or self._fits_on_disk(num_bytes)

    def allocate(self, shapes: Shapes) -> Block:
        """Arrays of any contents: in memory, else in a file, and over the cap of memory where there is no room at all.

        So nothing is lost half-way; ask `fits` before reading more.
        """
        num_bytes = num_bytes_of(shapes)
        if not self.fits_in_memory(num_bytes) and self._fits_on_disk(num_bytes):
            try:
                return self._allocate_on_disk(shapes, num_bytes)
            except OSError as error:
                logger.warning("no scratch file for the join", extra={"reason": str(error), "bytes": num_bytes})
        self.memory_used += num_bytes
        return Block({name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}, num_bytes, False)

    def count(self, num_bytes: int) -> Block:
        """Count memory that is held elsewhere."""
        self.memory_used += num_bytes
        return Block({}, num_bytes, False)

    def free(self, block: Block) -> None:
        """Give back; memory and file go with the last use of the arrays."""
        if block.is_on_disk:
            self.disk_used -= block.num_bytes
        else:
            self.memory_used -= block.num_bytes
        block.num_bytes = 0
        block.arrays = {}

    def _fits_on_disk(self, num_bytes: int) -> bool:
        if self.disk_used + num_bytes > self.disk_bytes or self._folder is None:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._folder).free > num_bytes

    def _allocate_on_disk(self, shapes: Shapes, num_bytes: int) -> Block:
        with tempfile.TemporaryFile(dir=self._folder) as file:
            reserve(file, num_bytes)  # writing to a map of a full disk would end the process
            mapped = mmap.mmap(file.fileno(), num_bytes)
        arrays, start = {}, 0
        for name, (shape, dtype) in shapes.items():
            num, type_ = int(np.prod(shape)), np.dtype(dtype)
            arrays[name] = np.frombuffer(mapped, type_, num, start).reshape(shape) if num else np.empty(shape, type_)
            start += aligned(num * type_.itemsize)
        self.disk_used += num_bytes
        return Block(arrays, num_bytes, True)


def reserve(file: IO[bytes], num_bytes: int) -> None:
    """Give an empty file so many bytes of the disk; OSError if there are not so many."""
    if sys.platform == "linux":
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    else:
        for start in range(0, num_bytes, ZEROS):
            file.write(bytes(min(ZEROS, num_bytes - start)))
        file.flush()


def aligned(num_bytes: int) -> int:
    """The bytes that an array takes in a block."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def num_bytes_of(shapes: Shapes) -> int:
    """The bytes of a block of such arrays."""
    sizes = (aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize) for shape, dtype in shapes.values())
    return max(ALIGNMENT, sum(sizes))
