"""Transfers between host and GPU through pinned memory, each way on a stream of its own.

Memory is torch's; several arrays travel in one block.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.grid import starts_of

ALIGNMENT = 256  # of arrays that travel in one block


class PinnedTransfers:
    """Copies between host arrays and a device's arrays.

    `bytes_of` returns an array's bytes as a torch tensor, on the current stream.
    `array_at(bytes, offset, shape, dtype)` makes a device array inside a torch tensor of bytes.
    """

    def __init__(
        self,
        torch: Any,
        bytes_of: Callable[[Array], Any],
        array_at: Callable[[Any, int, tuple[int, ...], Any], Array],
    ) -> None:
        self._torch, self._bytes_of, self._array_at = torch, bytes_of, array_at
        # a GPU has one copy engine each way
        self._up, self._down = torch.cuda.Stream(), torch.cuda.Stream()

    def upload(self, hosts: Sequence[Any]) -> tuple[list[Array], Any]:
        """Copy contiguous host arrays in one transfer on the current stream; the arrays, and the tensor under them."""
        starts, num_bytes = starts_of((host.nbytes for host in hosts), ALIGNMENT)
        block = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        bytes_ = block.numpy()
        for host, start in zip(hosts, starts, strict=True):
            bytes_[start : start + host.nbytes] = host.reshape(-1).view(np.uint8)
        # torch keeps the pinned block from other uses until the copy has been made
        there = block.to("cuda", non_blocking=True)
        return [self._array_at(there, at, h.shape, h.dtype) for h, at in zip(hosts, starts, strict=True)], there

    def upload_async(self, arrays: Sequence[Any]) -> Callable[[], tuple[Array, ...]]:
        """`upload` beside the work; calling the result orders later work after the copy and returns the arrays."""
        with self._torch.cuda.stream(self._up):
            there, block = self.upload([np.ascontiguousarray(array) for array in arrays])
            arrived = self._recorded()

        def finish() -> tuple[Array, ...]:
            stream = self._torch.cuda.current_stream()
            stream.wait_event(arrived)
            block.record_stream(stream)  # else the next upload could overwrite what is still being read
            return tuple(there)

        return finish

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """Start copying arrays to the host on the current stream; calling the result waits and returns them."""
        starts, num_bytes = starts_of((array.nbytes for array in arrays), ALIGNMENT)
        block = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        for array, start in zip(arrays, starts, strict=True):
            if array.nbytes:
                block[start : start + array.nbytes].copy_(self._bytes_of(array), non_blocking=True)
        arrived = self._recorded()
        layouts = [(array.shape, array.dtype, array.nbytes) for array in arrays]

        def wait() -> tuple[Any, ...]:
            arrived.synchronize()
            here = block.numpy()
            return tuple(
                here[start : start + size].view(dtype).reshape(shape)
                for (shape, dtype, size), start in zip(layouts, starts, strict=True)
            )

        return wait

    def download_async(self, arrays: Sequence[Array]) -> Callable[[], tuple[Any, ...]]:
        """`fetch` beside the work asked for from now on, which must not write to the arrays."""
        self._down.wait_event(self._recorded())
        with self._torch.cuda.stream(self._down):
            arrive = self.fetch(arrays)
        kept = [*arrays]  # the current stream must not reuse their memory before they are copied

        def wait() -> tuple[Any, ...]:
            here = arrive()
            kept.clear()
            return here

        return wait

    def _recorded(self) -> Any:
        """An event that is past once the current stream has done all earlier work."""
        event: Any = self._torch.cuda.Event()
        event.record()
        return event
