"""The CPU twin's arrays: they are the host's, so that nothing crosses and nothing waits."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.index.buckets import WIDTH

Array = npt.NDArray[Any]
AT_ONCE = nullcontext()


class HostArrays:
    """The part of kernels/spec.py on arrays as such."""

    width = WIDTH
    on_host = True
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
