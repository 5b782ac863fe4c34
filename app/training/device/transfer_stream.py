"""The way between the host and a GPU: pinned memory, a stream of its own for copies, events for who waits for whom."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float32Array = npt.NDArray[np.float32]


class TransferStream(Protocol):
    """Bytes to a device and numbers back. A mark is something that work on a stream can be past."""

    def allocate_pinned(self, num_bytes: int) -> Tensor:
        """Memory of the host that copies need not go around, uint8."""
        ...

    def allocate_on_device(self, num_bytes: int) -> Tensor:
        """Memory of the device, uint8."""
        ...

    def record_event(self) -> Any:
        """Past once the device has done all that was asked of it so far."""
        ...

    def copy_async(self, here: Tensor, there: Tensor, after: Any) -> Any:
        """Begins to copy, beside the work, once a mark is past; the mark of the copy's end."""
        ...

    def device_wait(self, mark: Any) -> None:
        """Work asked for from now on begins when it is past. The host does not wait."""
        ...

    def host_wait(self, mark: Any) -> None:
        """The host waits until it is past."""
        ...

    def side_stream(self, mark: Any) -> AbstractContextManager[object]:
        """What is asked for within begins when the mark is past, beside what was asked for since.

        Work asked for afterwards comes after both. What was made within may be used there until the next such block
        has got its mark, no longer: the memory is that of a stream of its own.
        """
        ...

    def fetch_async(self, numbers: Tensor) -> Callable[[], Float32Array]:
        """Begins to copy float32 numbers to the host; the call that it gives waits for them alone."""
        ...


class CudaTransferStream:
    """Torch's current GPU: work is what is on the current stream, copies and lookahead have streams of their own."""

    def __init__(self) -> None:
        self._copies = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._ahead = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def allocate_pinned(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def allocate_on_device(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")

    def record_event(self) -> torch.cuda.Event:
        return _recorded(torch.cuda.current_stream())

    def copy_async(self, here: Tensor, there: Tensor, after: torch.cuda.Event) -> torch.cuda.Event:
        self._copies.wait_event(after)
        with torch.cuda.stream(self._copies):
            there.copy_(here, non_blocking=True)
        return _recorded(self._copies)

    def device_wait(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream().wait_event(mark)

    def host_wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    @contextmanager
    def side_stream(self, mark: torch.cuda.Event) -> Iterator[None]:
        self._ahead.wait_event(mark)
        with torch.cuda.stream(self._ahead):
            yield
        torch.cuda.current_stream().wait_event(_recorded(self._ahead))

    def fetch_async(self, numbers: Tensor) -> Callable[[], Float32Array]:
        here = torch.empty(numbers.shape, dtype=torch.float32, pin_memory=True)
        here.copy_(numbers, non_blocking=True)
        arrived = self.record_event()

        def wait() -> Float32Array:
            arrived.synchronize()
            return here.numpy().copy()  # pinned memory is for those who come after

        return wait


def _recorded(stream: Any) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
