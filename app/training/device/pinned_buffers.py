"""Sends a batch's columns to a device: all in one pinned buffer, so that one copy takes them.

Two buffers take turns: one batch is learned from while the next one's columns travel.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from springtide.app.training.device.transfer_stream import TransferStream

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
