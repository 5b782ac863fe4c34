"""The admission sketch at one version: changed blocks in layers over the base's blocks. Immutable, like the rows."""

# B blocks of the sketch, n blocks of a layer, N keys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Int64Array, UInt8Array, UInt64Array
from springtide_client.rows.sketch import BLOCK_BYTES, blocks_of, estimates_in

# a layer is at least this many times as long as the one above it: few layers to search, few blocks copied
LAYER_RATIO = 4


class SketchLayer(NamedTuple):
    """Blocks in the order of their numbers, each once."""

    block: Int64Array
    bytes: UInt8Array  # [n, 64]


@dataclass(frozen=True)
class AdmissionCounts:
    """The counts of one version. `base` is None where only the layers hold counts."""

    num_blocks: int = 0
    base: UInt8Array | None = None  # [B, 64]
    layers: tuple[SketchLayer, ...] = ()  # newest first

    @property
    def num_bytes(self) -> int:
        """The memory of the layers."""
        return sum(layer.block.nbytes + layer.bytes.nbytes for layer in self.layers)

    def apply(self, tensors: Mapping[str, npt.NDArray[Any]], num_blocks: int) -> "AdmissionCounts":
        """Return the counts of the next version, whose sketch has `num_blocks`; a new size starts from zero."""
        counts = self if num_blocks == self.num_blocks else AdmissionCounts(num_blocks)
        if not len(tensors.get("sketch.block", ())):
            return counts
        order = np.argsort(tensors["sketch.block"], kind="stable")
        layer = SketchLayer(tensors["sketch.block"][order], tensors["sketch.bytes"][order])
        return replace(counts, layers=(layer, *counts.layers))

    def merged(self) -> "AdmissionCounts":
        """Return the same counts in few layers."""
        layers = list(reversed(self.layers))  # oldest first: a stack
        start = len(layers)
        while start > 1 and len(layers[start - 2].block) < LAYER_RATIO * sum(
            len(layer.block) for layer in layers[start - 1 :]
        ):
            start -= 1
        if start > len(layers) - 1:
            return self
        return replace(self, layers=(_merge(layers[start - 1 :]), *reversed(layers[: start - 1])))

    def estimates(self, mixed_N: UInt64Array, age: int) -> Int64Array:
        """Estimate how often each key was counted, halved with each age: never below the truth, sometimes above it."""
        if self.num_blocks == 0:
            return np.zeros(len(mixed_N), np.int64)
        blocks_N = blocks_of(mixed_N, self.num_blocks)
        bytes_N64 = np.zeros((len(mixed_N), BLOCK_BYTES), np.uint8)
        missing = np.arange(len(mixed_N))
        for layer in self.layers:
            at = np.minimum(np.searchsorted(layer.block, blocks_N[missing]), len(layer.block) - 1)
            here = layer.block[at] == blocks_N[missing]
            bytes_N64[missing[here]] = layer.bytes[at[here]]
            missing = missing[~here]
        if self.base is not None and len(missing):
            bytes_N64[missing] = self.base[blocks_N[missing]]
        return estimates_in(bytes_N64, mixed_N, age)


def _merge(layers: list[SketchLayer]) -> SketchLayer:
    """Return one layer that answers like all of them, given oldest first."""
    # np.unique keeps the first of equal numbers: the newest layer comes first
    newest_first = layers[::-1]
    block, first = np.unique(np.concatenate([layer.block for layer in newest_first]), return_index=True)
    return SketchLayer(block, np.concatenate([layer.bytes for layer in newest_first])[first])
