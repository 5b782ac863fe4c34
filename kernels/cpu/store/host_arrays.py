"""Transfers of the CPU backend: its arrays are the host's, so nothing is copied and nothing waits."""

# K keys, D dimension
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.ops import OutputBuffers

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


Array = npt.NDArray[Any]
AT_ONCE = nullcontext()


class HostArrays:
    """The part of kernels/ops.py on arrays as such."""

    device = "cpu"
    width = WIDTH
    max_threads = 256
    readback_delay = 0
    xp: Any = np

    def on_current_stream(self) -> AbstractContextManager[object]:
        return AT_ONCE

    def put(self, *arrays: Any) -> tuple[Array, ...]:
        return arrays

    def upload_async(self, *arrays: Array) -> Callable[[], tuple[Array, ...]]:
        return lambda: arrays

    def fetch(self, *arrays: Array) -> tuple[Array, ...]:
        return arrays

    def download_async(self, *arrays: Array) -> Callable[[], tuple[Array, ...]]:
        return lambda: arrays

    def array_of(self, tensor: Any) -> Array:
        array: Array = tensor.detach().cpu().numpy()
        return array

    def tensor_of(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(array)

    def unpadded(self, list_N: Array) -> Array:
        return list_N

    def num_padding(self, list_N: Array) -> int:
        return 0

    def num_listed(self, list_N: Array) -> Any:
        return len(list_N)

    def bags_of_keys(self, offsets_B1: Array, num_keys: int) -> Array:
        return np.repeat(np.arange(len(offsets_B1) - 1), np.diff(offsets_B1))

    def count_values(self, values_K: Array, num: int) -> Array:
        return np.bincount(values_K, minlength=num)

    def new_output_buffers(self) -> OutputBuffers:
        return ReusedBuffers()
