"""Steps of every op of the CUDA backend: check an argument's dtype and shape, size the grid, launch."""

from typing import Any

import numpy as np

from springtide.kernels.cuda.cupy_device import CupyDevice
from springtide.kernels.cuda.device import Array, Device
from springtide.kernels.cuda.sources import Defines

MOST_BLOCKS = 1 << 16  # of loops that step over the whole grid: more than any GPU runs at once
MOST_CHUNKS = 4096  # every block of a compaction adds up the counts of those before it


def blocks_for(num_threads: int, threads: int) -> int:
    """Blocks of so many threads that give each thread one thing, as far as a grid goes; at least one."""
    return min(max(1, -(-num_threads // threads)), MOST_BLOCKS)


def chunk_for(num: int, threads: int) -> int:
    """How many of `num` things one block compacts: whole tiles of a block, and no more than MOST_CHUNKS chunks."""
    return max(4, -(-num // (MOST_CHUNKS * threads))) * threads


def chunks_for(num: int, threads: int) -> int:
    """The blocks of that compaction; at least one."""
    return max(1, -(-num // chunk_for(num, threads)))


ROW_ALIGNMENT = 16


class Launcher:
    """Base class of the groups of ops.

    A result whose length only the GPU knows is trimmed to it, which waits for the GPU. With `exact=False` nothing
    waits: such a result keeps its longest length, padded with -1 (or no key), which every op skips, and a count is an
    int64 array of one number. `late=True` does that only where the specification says "Late".
    """

    def __init__(self, device: Device | None = None, *, exact: bool = True, late: bool = False) -> None:
        self._device = CupyDevice() if device is None else device
        self._exact, self._late = exact, late or not exact

    def _launch(self, family: str, kernel: str, num_threads: int, *arguments: Any, defines: Defines = ()) -> None:
        """Launches a kernel whose threads step over the grid; nothing to do launches nothing."""
        if num_threads > 0:
            num_blocks = blocks_for(num_threads, self._device.threads)
            self._device.launch(family, kernel, num_blocks, arguments, defines)

    def _listed(
        self,
        family: str,
        noun: str,
        num: int,
        kept: tuple[Any, ...],
        lists: tuple[Array, ...],
        defines: Defines = (),
    ) -> Array:
        """Compacts: kernels count_<noun> and list_<noun> over `num` things; how many were listed, on the device.

        `lists` are filled from their beginning; both kernels take `kept`, the number and the chunk first.
        """
        device, threads = self._device, self._device.threads
        chunk, num_chunks = np.int64(chunk_for(num, threads)), chunks_for(num, threads)
        counts, num_listed_1 = device.empty(num_chunks, np.int64), device.empty(1, np.int64)
        device.launch(family, f"count_{noun}", num_chunks, (*kept, np.int64(num), chunk, counts), defines)
        arguments = (*kept, np.int64(num), chunk, counts, *lists, num_listed_1)
        device.launch(family, f"list_{noun}", num_chunks, arguments, defines)
        return num_listed_1

    def _list_of(self, num: int, dtype: Any, *, may_be_late: bool = False) -> Array:
        """The output of a list op: as long as it may get, padded with what every op skips."""
        padded = self._late if may_be_late else not self._exact
        return self._device.filled(num, dtype, 0xFF) if padded else self._device.empty(num, dtype)

    def _compacted(
        self, family: str, noun: str, num: int, kept: tuple[Any, ...], *, may_be_late: bool = False
    ) -> Array:
        """Compacts as `_listed` into one list of int64, which is trimmed unless it may be late, and is."""
        listed_N = self._list_of(num, np.int64, may_be_late=may_be_late)
        num_1 = self._listed(family, noun, num, kept, (listed_N,))
        return listed_N if may_be_late and self._late else self._trim(num_1, listed_N)[0]

    def _trim(self, num_1: Array, *lists: Array) -> tuple[Array, ...]:
        """The lists, as long as they are."""
        if not self._exact:
            return lists
        (num,) = self._device.read(num_1)
        return tuple(array[:num] for array in lists)

    def _array(self, name: str, array: Any, dtype: Any, *shape: int) -> Array:
        """The argument on the device; ValueError where it is of another dtype or shape (-1: any length)."""
        there = self._device.put(array)
        fits = len(there.shape) == len(shape) and all(w in (-1, n) for n, w in zip(there.shape, shape, strict=True))
        if there.dtype != dtype or not fits or not there.flags.c_contiguous:
            wanted = tuple("any" if n < 0 else n for n in shape)
            raise ValueError(f"{name} {there.dtype} {there.shape} for contiguous {np.dtype(dtype)} {wanted}")
        return there

    def _rows(self, name: str, array: Any, num: int, dim: int) -> Array:
        """Float32 rows on the device, which are read and written 16 bytes at once."""
        there = self._array(name, array, np.float32, num, dim)
        if dim % 4 == 0 and self._device.address(there) % ROW_ALIGNMENT:
            raise ValueError(f"{name} begin at no multiple of {ROW_ALIGNMENT} bytes: pass a copy")
        return there
