"""The admission sketch at one version: changed blocks in layers over the base's blocks. Immutable, like the rows."""

# B blocks, N keys
# B blocks of the sketch, n blocks of a layer, N keys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Int64Array, UInt8Array, UInt64Array

BLOCK_BYTES = 64
COUNTERS_AT, NUM_COUNTERS = 4, 60
# a layer is at least this many times as long as the one above it: few layers to search, few blocks copied
LAYER_RATIO = 4


def estimates(blocks_B64: UInt8Array, key_hash_N: UInt64Array, age: int) -> Int64Array:
    """Estimate how often each key was counted, 0..255: never below the truth, sometimes above it.

    ValueError unless the blocks are uint8 (B, 64).
    """
    if blocks_B64.dtype != np.uint8 or blocks_B64.ndim != 2 or blocks_B64.shape[1] != BLOCK_BYTES:
        raise ValueError(f"a sketch is uint8 (B, {BLOCK_BYTES}), not {blocks_B64.dtype} {blocks_B64.shape}")
    return estimates_in(blocks_B64[blocks_of(key_hash_N, len(blocks_B64))], key_hash_N, age)


def blocks_of(key_hash_N: UInt64Array, num_blocks: int) -> Int64Array:
    """Return the number of the block that holds each key's counters."""
    block_N: Int64Array = ((key_hash_N >> np.uint64(32)) * np.uint64(num_blocks) >> np.uint64(32)).astype(np.int64)
    return block_N


def estimates_in(blocks_N64: UInt8Array, key_hash_N: UInt64Array, age: int) -> Int64Array:
    """Estimate from the block of each key: `blocks_N64[n]` holds the counters of key n."""
    positions_N = np.arange(len(key_hash_N))
    counters_N4 = np.empty((len(key_hash_N), 4), np.int64)
    for i in range(4):
        byte_N = (key_hash_N >> np.uint64(8 * i)) & np.uint64(255)
        at_N = COUNTERS_AT + (byte_N * np.uint64(NUM_COUNTERS) >> np.uint64(8)).astype(np.int64)
        counters_N4[:, i] = blocks_N64[positions_N, at_N]
    ages_N = np.ascontiguousarray(blocks_N64[:, :COUNTERS_AT]).view("<u4")[:, 0].astype(np.int64)
    result_N: Int64Array = counters_N4.min(axis=1) >> np.clip(age - ages_N, 0, 8)
    return result_N


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

    def estimates(self, key_hash_N: UInt64Array, age: int) -> Int64Array:
        """Estimate how often each key was counted, halved with each age: never below the truth, sometimes above it."""
        if self.num_blocks == 0:
            return np.zeros(len(key_hash_N), np.int64)
        blocks_N = blocks_of(key_hash_N, self.num_blocks)
        bytes_N64 = np.zeros((len(key_hash_N), BLOCK_BYTES), np.uint8)
        missing = np.arange(len(key_hash_N))
        for layer in self.layers:
            at = np.minimum(np.searchsorted(layer.block, blocks_N[missing]), len(layer.block) - 1)
            here = layer.block[at] == blocks_N[missing]
            bytes_N64[missing[here]] = layer.bytes[at[here]]
            missing = missing[~here]
        if self.base is not None and len(missing):
            bytes_N64[missing] = self.base[blocks_N[missing]]
        return estimates_in(bytes_N64, key_hash_N, age)


def _merge(layers: list[SketchLayer]) -> SketchLayer:
    """Return one layer that answers like all of them, given oldest first."""
    # np.unique keeps the first of equal numbers: the newest layer comes first
    newest_first = layers[::-1]
    block, first = np.unique(np.concatenate([layer.block for layer in newest_first]), return_index=True)
    return SketchLayer(block, np.concatenate([layer.bytes for layer in newest_first])[first])
