"""Host memory into which tensors are copied again and again: fresh memory would cost more than the copy itself."""

from collections.abc import Mapping

import torch
from torch import Tensor

from springtide_client.format.tensors import BFLOAT16, Array, Arrays


class NetBuffers:
    """One buffer per tensor, made at the first use; with `bfloat16` those of float32 tensors hold bfloat16."""

    def __init__(self, *, bfloat16: bool = False) -> None:
        self._bfloat16 = bfloat16
        self._buffers: dict[str, Tensor] = {}

    def fill(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """Copy the tensors and return arrays over the buffers, which the next call overwrites."""
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape:
                is_rounded = self._bfloat16 and tensor.dtype == torch.float32
                dtype = torch.bfloat16 if is_rounded else tensor.dtype
                buffer = self._buffers[name] = torch.empty(tensor.shape, dtype=dtype)
            buffer.copy_(tensor)
        return {name: _array_over(self._buffers[name]) for name in tensors}


def _array_over(buffer: Tensor) -> Array:
    if buffer.dtype == torch.bfloat16:
        return buffer.view(torch.int16).numpy().view(BFLOAT16)
    return buffer.numpy()
