"""The verbs on arrays as such: what crosses between the host and the GPU, and in which order."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kernels.cuda.device import Array
from kernels.cuda.launchers.launcher import Launcher
from kernels.cuda.store import WIDTH


class TransferVerbs(Launcher):
    """The arrays' part of kernels/spec.py."""

    width = WIDTH
    on_host = False

    @property
    def xp(self) -> Any:
        return self._device.xp

    def in_order(self) -> AbstractContextManager[object]:
        return self._device.in_order()

    def put(self, *arrays: Any) -> tuple[Array, ...]:
        return self._device.put_all(arrays)

    def put_ahead(self, *arrays: Any) -> Callable[[], tuple[Array, ...]]:
        return self._device.put_ahead(arrays)

    def fetch(self, *arrays: Array) -> tuple[Any, ...]:
        return self._device.fetch(arrays)()

    def fetch_later(self, *arrays: Array) -> Callable[[], tuple[Any, ...]]:
        return self._device.fetch_beside(arrays)

    def array_of(self, tensor: Any) -> Array:
        return self._device.array_of(tensor)

    def tensor_of(self, array: Array) -> Any:
        return self._device.tensor(array)
