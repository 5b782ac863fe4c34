"""A batch's columns on their way to a device: end to end in one pinned block, so that one copy takes them all.

Two blocks take turns: one is being learned from while the next batch's travels.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.training.device.transfer_stream import TransferStream

Columns = Mapping[str, npt.NDArray[Any]]

ALIGNMENT = 256  # of a column: whatever reads it may read whole vectors
MIN_BUFFER_BYTES = 1 << 16  # bytes of a block
NUM_BUFFERS = 2


class ColumnSlot(NamedTuple):
    """Where a column lies in a block."""

    start: int
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def column_layout(columns: Columns) -> tuple[dict[str, ColumnSlot], int]:
    """Where each column goes, and the bytes of all, from one aligned place to the next."""
    places, at = {}, 0
    for name, column in columns.items():
        places[name] = ColumnSlot(at, at + column.nbytes, column.dtype, column.shape)
        at += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
    return places, at


def write_columns(columns: Columns, places: Mapping[str, ColumnSlot], block: Tensor) -> None:
    """Copies the columns to their places."""
    bytes_ = block.numpy()
    for name, place in places.items():
        there = bytes_[place.start : place.stop].view(place.dtype).reshape(place.shape)
        there[...] = columns[name]


def read_columns(places: Mapping[str, ColumnSlot], block: Tensor) -> dict[str, Tensor]:
    """The columns as tensors that lie in the block."""
    return {
        name: block[place.start : place.stop].view(torch_dtype(place.dtype)).view(place.shape)
        for name, place in places.items()
    }


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Torch's name of numpy's type."""
    name: torch.dtype = getattr(torch, dtype.name)
    return name


class PinnedBuffer:
    """Memory at both ends, and how far its use has come."""

    def __init__(self, lane: TransferStream, num_bytes: int) -> None:
        self.host, self.device = lane.allocate_pinned(num_bytes), lane.allocate_on_device(num_bytes)
        self.last_use = lane.record_event()  # the device's memory may have been somebody else's until now
        self.copy_done: Any = None
        self.in_use = False


class StagedColumns:
    """Columns that are on their way, until `release`."""

    def __init__(self, lane: TransferStream, block: PinnedBuffer, places: Mapping[str, ColumnSlot]) -> None:
        self._lane, self._places = lane, places
        self._block: PinnedBuffer | None = block

    def tensors(self) -> dict[str, Tensor]:
        """The columns on the device: work asked for from now on finds them there."""
        assert self._block is not None, "released"
        self._lane.device_wait(self._block.copy_done)
        return read_columns(self._places, self._block.device)

    def release(self) -> None:
        """What was asked of the device so far is the last that reads them; a second call does nothing."""
        block, self._block = self._block, None
        if block is not None:
            block.last_use, block.in_use = self._lane.record_event(), False


class PinnedBuffers:
    """The blocks; they grow with the batches."""

    def __init__(self, lane: TransferStream) -> None:
        self._lane = lane
        self._blocks: list[PinnedBuffer | None] = [None] * NUM_BUFFERS

    def stage(self, columns: Columns) -> StagedColumns:
        """Begins one copy of all columns. RuntimeError where as many batches are held as there are blocks."""
        places, num_bytes = column_layout(columns)
        block = self._free(num_bytes)
        write_columns(columns, places, block.host)
        block.copy_done = self._lane.copy_async(block.host[:num_bytes], block.device[:num_bytes], block.last_use)
        block.in_use = True
        return StagedColumns(self._lane, block, places)

    def _free(self, num_bytes: int) -> PinnedBuffer:
        """A block that nobody holds, whose last copy has left the host's memory."""
        for number, block in enumerate(self._blocks):
            if block is not None and block.in_use:
                continue
            if block is not None and block.copy_done is not None:
                self._lane.host_wait(block.copy_done)
            if block is None or len(block.host) < num_bytes:
                block = PinnedBuffer(self._lane, max(MIN_BUFFER_BYTES, 1 << (num_bytes - 1).bit_length()))
            # the other one is first next time
            self._blocks = [*self._blocks[:number], *self._blocks[number + 1 :], block]
            return block
        raise RuntimeError(f"{NUM_BUFFERS} batches are on their way already: release one")
