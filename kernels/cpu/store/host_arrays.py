"""Transfers of the CPU backend: its arrays are the host's, so nothing is copied and nothing waits."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.index.buckets import WIDTH
from springtide.kernels.cpu.store.output_buffers import ReusedBuffers
from springtide.kernels.ops import OutputBuffers

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
