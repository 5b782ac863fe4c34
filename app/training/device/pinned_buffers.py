"""A batch's columns on their way to a device: end to end in one pinned block, so that one copy takes them all.

Two blocks take turns: one is being learned from while the next batch's travels.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.training.device.transfer_stream import Lane

Columns = Mapping[str, npt.NDArray[Any]]

ALIGNMENT = 256  # of a column: whatever reads it may read whole vectors
SMALLEST = 1 << 16  # bytes of a block
NUM_BLOCKS = 2


class Place(NamedTuple):
    """Where a column lies in a block."""

    start: int
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def places_of(columns: Columns) -> tuple[dict[str, Place], int]:
    """Where each column goes, and the bytes of all, from one aligned place to the next."""
    places, at = {}, 0
    for name, column in columns.items():
        places[name] = Place(at, at + column.nbytes, column.dtype, column.shape)
        at += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
    return places, at


def write(columns: Columns, places: Mapping[str, Place], block: Tensor) -> None:
    """Copies the columns to their places."""
    bytes_ = block.numpy()
    for name, place in places.items():
        there = bytes_[place.start : place.stop].view(place.dtype).reshape(place.shape)
        there[...] = columns[name]


def read(places: Mapping[str, Place], block: Tensor) -> dict[str, Tensor]:
    """The columns as tensors that lie in the block."""
    return {
        name: block[place.start : place.stop].view(torch_dtype(place.dtype)).view(place.shape)
        for name, place in places.items()
    }


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Torch's name of numpy's type."""
    name: torch.dtype = getattr(torch, dtype.name)
    return name


class Block:
    """Memory at both ends, and how far its use has come."""

    def __init__(self, lane: Lane, num_bytes: int) -> None:
        self.here, self.there = lane.pinned(num_bytes), lane.there(num_bytes)
        self.used = lane.mark()  # the device's memory may have been somebody else's until now
        self.copied: Any = None
        self.is_held = False


class Staged:
    """Columns that are on their way, until `release`."""

    def __init__(self, lane: Lane, block: Block, places: Mapping[str, Place]) -> None:
        self._lane, self._places = lane, places
        self._block: Block | None = block

    def tensors(self) -> dict[str, Tensor]:
        """The columns on the device: work asked for from now on finds them there."""
        assert self._block is not None, "released"
        self._lane.wait_there(self._block.copied)
        return read(self._places, self._block.there)

    def release(self) -> None:
        """What was asked of the device so far is the last that reads them; a second call does nothing."""
        block, self._block = self._block, None
        if block is not None:
            block.used, block.is_held = self._lane.mark(), False


class Staging:
    """The blocks; they grow with the batches."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._blocks: list[Block | None] = [None] * NUM_BLOCKS

    def stage(self, columns: Columns) -> Staged:
        """Begins one copy of all columns. RuntimeError where as many batches are held as there are blocks."""
        places, num_bytes = places_of(columns)
        block = self._free(num_bytes)
        write(columns, places, block.here)
        block.copied = self._lane.carry(block.here[:num_bytes], block.there[:num_bytes], block.used)
        block.is_held = True
        return Staged(self._lane, block, places)

    def _free(self, num_bytes: int) -> Block:
        """A block that nobody holds, whose last copy has left the host's memory."""
        for number, block in enumerate(self._blocks):
            if block is not None and block.is_held:
                continue
            if block is not None and block.copied is not None:
                self._lane.wait_here(block.copied)
            if block is None or len(block.here) < num_bytes:
                block = Block(self._lane, max(SMALLEST, 1 << (num_bytes - 1).bit_length()))
            # the other one is first next time
            self._blocks = [*self._blocks[:number], *self._blocks[number + 1 :], block]
            return block
        raise RuntimeError(f"{NUM_BLOCKS} batches are on their way already: release one")
