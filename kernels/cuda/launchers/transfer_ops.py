"""The ops on arrays as such: what crosses between the host and the GPU, and in which order."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kernels.cuda.device import Array
from kernels.cuda.launchers.launcher import Launcher
from kernels.cuda.store import WIDTH


class TransferOps(Launcher):
    """The arrays' part of kernels/spec.py."""

    width = WIDTH
    on_host = False

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
        return self._device.fetch_beside(arrays)

    def array_of(self, tensor: Any) -> Array:
        return self._device.array_of(tensor)

    def tensor_of(self, array: Array) -> Any:
        return self._device.tensor(array)
