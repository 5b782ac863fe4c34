"""Where training runs, host or GPU: the streams that move numbers between them, and work captured as a CUDA graph."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from springtide.app.training.config import TrainConfig
from springtide.kernels.ops import Ops

Output = TypeVar("Output")


class GraphCapture(Protocol):
    """Turns work into something that can be replayed."""

    def __call__(self, work: Callable[[], Output], warmup_runs: int) -> tuple[Output, Callable[[], None]]:
        """Run the work a few times, then capture it. Returns its output, which every replay overwrites, and the replay.

        RuntimeError if the work cannot be captured.
        """
        ...


def capture_cuda_graph(work: Callable[[], Output], warmup_runs: int) -> tuple[Output, Callable[[], None]]:
    """A GraphCapture whose graph has memory of its own, on torch's current GPU."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup_runs):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
        output = work()
    return output, graph.replay


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


class TrainDevice(NamedTuple):
    """A device. Without a transfer stream, batches are learned in the memory where they are."""

    device: torch.device = torch.device("cpu")
    transfer: TransferStream | None = None
    graph_capture: GraphCapture | None = None  # None: the dense step runs without CUDA graphs
    table: str | Ops = "cpu"  # where rows are trained

    @property
    def has_bfloat16(self) -> bool:
        """True if it multiplies bfloat16 in hardware; elsewhere that is slower than float32."""
        if self.device.type == "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        has_avx512 = torch.backends.cpu.get_cpu_capability(), torch.cpu._is_avx512_bf16_supported()
        return has_avx512[1] or torch.cpu._is_amx_tile_supported()


def resolve_device(config: TrainConfig) -> TrainDevice:
    """Return the device that `[train] device` names; ValueError if this machine does not have it."""
    if config.device != "cuda":
        return TrainDevice()
    if not torch.cuda.is_available():
        raise ValueError(
            '[train] device = "cuda" needs an NVIDIA GPU, its driver and a CUDA build of PyTorch: '
            f'torch {torch.__version__} sees none here; take device = "cpu"'
        )
    capture = capture_cuda_graph if config.cuda_graphs else None
    return TrainDevice(torch.device("cuda"), CudaTransferStream(), capture, "cuda")


Columns = Mapping[str, npt.NDArray[Any]]

ALIGNMENT = 256  # bytes, of a column: kernels may read whole vectors
MIN_BUFFER_BYTES = 1 << 16
NUM_BUFFERS = 2


class ColumnSlot(NamedTuple):
    """Where a column lies in a buffer, in bytes."""

    start: int
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def column_layout(columns: Columns) -> tuple[dict[str, ColumnSlot], int]:
    """Return the aligned slot of each column, and the bytes of all."""
    slots, at = {}, 0
    for name, column in columns.items():
        slots[name] = ColumnSlot(at, at + column.nbytes, column.dtype, column.shape)
        at += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
    return slots, at


def write_columns(columns: Columns, slots: Mapping[str, ColumnSlot], buffer: Tensor) -> None:
    """Copy the columns into their slots."""
    bytes_ = buffer.numpy()
    for name, slot in slots.items():
        bytes_[slot.start : slot.stop].view(slot.dtype).reshape(slot.shape)[...] = columns[name]


def read_columns(slots: Mapping[str, ColumnSlot], buffer: Tensor) -> dict[str, Tensor]:
    """Return the columns as tensors that lie in the buffer."""
    return {
        name: buffer[slot.start : slot.stop].view(torch_dtype(slot.dtype)).view(slot.shape)
        for name, slot in slots.items()
    }


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's name of a numpy type."""
    name: torch.dtype = getattr(torch, dtype.name)
    return name


class PinnedBuffer:
    """Memory of one size on the host and on the device."""

    def __init__(self, stream: TransferStream, num_bytes: int) -> None:
        self.host, self.device = stream.allocate_pinned(num_bytes), stream.allocate_on_device(num_bytes)
        self.last_use = stream.record_event()  # earlier work may still use the device memory
        self.copy_done: Any = None
        self.in_use = False


class StagedColumns:
    """Columns on their way to the device, until `release`."""

    def __init__(self, stream: TransferStream, buffer: PinnedBuffer, slots: Mapping[str, ColumnSlot]) -> None:
        self._stream, self._slots = stream, slots
        self._buffer: PinnedBuffer | None = buffer

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns on the device; work submitted from now on waits for their copy."""
        assert self._buffer is not None, "released"
        self._stream.device_wait(self._buffer.copy_done)
        return read_columns(self._slots, self._buffer.device)

    def release(self) -> None:
        """Give the buffer back after the work submitted so far; a second call does nothing."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.last_use, buffer.in_use = self._stream.record_event(), False


class PinnedBuffers:
    """The buffers of a learner; they grow with the batches."""

    def __init__(self, stream: TransferStream) -> None:
        self._stream = stream
        self._buffers: list[PinnedBuffer | None] = [None] * NUM_BUFFERS

    def stage(self, columns: Columns) -> StagedColumns:
        """Start one copy of all columns. RuntimeError if all buffers are in use."""
        slots, num_bytes = column_layout(columns)
        buffer = self._acquire(num_bytes)
        write_columns(columns, slots, buffer.host)
        buffer.copy_done = self._stream.copy_async(buffer.host[:num_bytes], buffer.device[:num_bytes], buffer.last_use)
        buffer.in_use = True
        return StagedColumns(self._stream, buffer, slots)

    def _acquire(self, num_bytes: int) -> PinnedBuffer:
        """Return a free buffer, once its last copy has left the host's memory."""
        for number, buffer in enumerate(self._buffers):
            if buffer is not None and buffer.in_use:
                continue
            if buffer is not None and buffer.copy_done is not None:
                self._stream.host_wait(buffer.copy_done)
            if buffer is None or len(buffer.host) < num_bytes:
                buffer = PinnedBuffer(self._stream, max(MIN_BUFFER_BYTES, 1 << (num_bytes - 1).bit_length()))
            # the other one is first next time
            self._buffers = [*self._buffers[:number], *self._buffers[number + 1 :], buffer]
            return buffer
        raise RuntimeError(f"all {NUM_BUFFERS} pinned buffers are in use: release one")
