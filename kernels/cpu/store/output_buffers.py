"""Memory for gathered rows, used again once nothing refers to it: a fresh page costs more than the rows on it."""

# K keys, D dimension
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
MAX_BUFFERS = 4


class _Buffer(NamedTuple):
    memory: memoryview  # of float32
    # the array over all that was taken. Every view of it keeps it alive, because numpy passes over the base of a base
    # only where that is an array too, and here it is a memoryview
    lease: "weakref.ref[Float32Array]"

    @property
    def size(self) -> int:
        return len(self.memory)

    def is_free(self) -> bool:
        return self.lease() is None


class ReusedBuffers:
    """Arrays (K, D) over a few kept buffers. One thread takes; any thread may drop its array."""

    def __init__(self) -> None:
        self._kept: list[_Buffer] = []

    def take(self, num_keys: int, dim: int) -> Float32Array:
        """An array (num_keys, dim) of any content; its memory is not handed out again while anything refers to it."""
        size = num_keys * dim
        if size == 0:
            return np.empty((num_keys, dim), np.float32)
        for index, buffer in enumerate(self._kept):
            if size <= buffer.size <= 4 * size and buffer.is_free():
                lease = np.frombuffer(buffer.memory, np.float32, size)
                self._kept[index] = buffer._replace(lease=weakref.ref(lease))
                return lease.reshape(num_keys, dim)
        memory = np.empty(size + size // 8, np.float32).data
        lease = np.frombuffer(memory, np.float32, size)
        in_use = (kept for kept in self._kept if not kept.is_free())
        self._kept = [*in_use, _Buffer(memory, weakref.ref(lease))][-MAX_BUFFERS:]
        return lease.reshape(num_keys, dim)

    def num_bytes(self) -> int:
        return sum(buffer.memory.nbytes for buffer in self._kept)
