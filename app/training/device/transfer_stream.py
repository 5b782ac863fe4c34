"""Copies between the host and a GPU: pinned memory, a CUDA stream for copies, events that order the streams."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float32Array = npt.NDArray[np.float32]


class TransferStream(Protocol):
    """Sends bytes to a device and reads numbers back. An event is a point in the work submitted to a stream."""

    def allocate_pinned(self, num_bytes: int) -> Tensor:
        """Allocate page-locked host memory, uint8."""
        ...

    def allocate_on_device(self, num_bytes: int) -> Tensor:
        """Allocate device memory, uint8."""
        ...

    def record_event(self) -> Any:
        """Return an event that completes once the device has done all work submitted so far."""
        ...

    def copy_async(self, host: Tensor, device: Tensor, after: Any) -> Any:
        """Start to copy to the device, beside other work, once `after` has completed; returns the copy's event."""
        ...

    def device_wait(self, event: Any) -> None:
        """Let work submitted from now on wait for the event. The host does not wait."""
        ...

    def host_wait(self, event: Any) -> None:
        """Block the host until the event has completed."""
        ...

    def side_stream(self, after: Any) -> AbstractContextManager[object]:
        """Run the work submitted inside on another stream: after the event, beside what was submitted since.

        Work submitted after the block waits for both. Tensors made inside may be used until the next such block has
        its event, no longer: their memory belongs to the other stream.
        """
        ...

    def fetch_async(self, numbers: Tensor) -> Callable[[], Float32Array]:
        """Start to copy float32 numbers to the host; the returned call waits for this copy alone."""
        ...


class CudaTransferStream:
    """Torch's current GPU: work runs on the current stream, copies and side work have streams of their own."""

    def __init__(self) -> None:
        self._copies = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def allocate_pinned(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def allocate_on_device(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")

    def record_event(self) -> torch.cuda.Event:
        return _event_on(torch.cuda.current_stream())

    def copy_async(self, host: Tensor, device: Tensor, after: torch.cuda.Event) -> torch.cuda.Event:
        self._copies.wait_event(after)
        with torch.cuda.stream(self._copies):
            device.copy_(host, non_blocking=True)
        return _event_on(self._copies)

    def device_wait(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream().wait_event(event)

    def host_wait(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    @contextmanager
    def side_stream(self, after: torch.cuda.Event) -> Iterator[None]:
        self._side.wait_event(after)
        with torch.cuda.stream(self._side):
            yield
        torch.cuda.current_stream().wait_event(_event_on(self._side))

    def fetch_async(self, numbers: Tensor) -> Callable[[], Float32Array]:
        host = torch.empty(numbers.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        copied = self.record_event()

        def wait() -> Float32Array:
            copied.synchronize()
            return host.numpy().copy()  # torch reuses the pinned memory

        return wait


def _event_on(stream: Any) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
