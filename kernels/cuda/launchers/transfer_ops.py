"""The ops on arrays as such: what crosses between the host and the GPU, and in which order."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.store import WIDTH
from springtide.kernels.ops import OutputBuffers
from springtide.kernels.types import NO_SLOT


class TransferOps(Launcher):
    """The arrays' part of kernels/ops.py."""

    device = "cuda"
    width = WIDTH
    max_threads = 1
    readback_delay = 1

    @property
    def xp(self) -> Any:
        return self._device.xp

    def on_current_stream(self) -> AbstractContextManager[object]:
        return self._device.on_current_stream()

    def put(self, *arrays: Any) -> tuple[Array, ...]:
        return self._device.put_all(arrays)

    def upload_async(self, *arrays: Any) -> Callable[[], tuple[Array, ...]]:
        return self._device.upload_async(arrays)

    def fetch(self, *arrays: Array) -> tuple[Any, ...]:
        return self._device.fetch(arrays)()

    def download_async(self, *arrays: Array) -> Callable[[], tuple[Any, ...]]:
        return self._device.download_async(arrays)

    def array_of(self, tensor: Any) -> Array:
        return self._device.array_of(tensor)

    def tensor_of(self, array: Array) -> Any:
        return self._device.tensor(array)

    def unpadded(self, list_N: Array) -> Array:
        return list_N[list_N != NO_SLOT]

    def num_padding(self, list_N: Array) -> int:
        return len(list_N)

    def num_listed(self, list_N: Array) -> Any:
        return self.xp.count_nonzero(list_N != NO_SLOT).reshape(1)

    def bags_of_keys(self, offsets_B1: Array, num_keys: int) -> Array:
        # xp.repeat would wait for the lengths
        return self.xp.searchsorted(offsets_B1[1:], self.xp.arange(num_keys), side="right")

    def count_values(self, values_K: Array, num: int) -> Array:
        return (values_K[:, None] == self.xp.arange(num)).sum(0)

    def new_output_buffers(self) -> OutputBuffers:
        return FreshBuffers()


class FreshBuffers:
    """Output buffers of a GPU: none, since torch's allocator reuses memory anyway."""

    def take(self, num_keys: int, dim: int) -> Array | None:
        return None

    def num_bytes(self) -> int:
        return 0
