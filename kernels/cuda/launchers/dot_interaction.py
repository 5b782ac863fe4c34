"""The dot products of a sample's vectors and their gradients: checks, shapes and launches of dot_interaction.cu."""

# N samples, V vectors of a sample, D dimension, I pairs of vectors
from typing import Any

import numpy as np

from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import MOST_BLOCKS, Launcher

MOST_VECTORS = 64
# numbered as in dot_interaction.cu; bfloat16 comes as its bits
NUMBERS = {np.dtype(np.float32): 0, np.dtype(np.int16): 1, np.dtype(np.float64): 2}
SIDE, MOST_ROWS, MATRIX_BYTES, ROW_BYTES, MOST_WIDTH = 4, 512, 32768, 16384, 32


def num_pairs_of(num_vectors: int) -> int:
    """Pairs of so many vectors."""
    return num_vectors * (num_vectors - 1) // 2


def product_group(num_vectors: int, threads: int) -> int:
    """How many samples a block multiplies out at once: a thread for each tile, and room for the rows."""
    quads = -(-num_vectors // SIDE)
    return min(threads // (quads * (quads + 1) // 2), MOST_ROWS // (SIDE * quads))


def gradient_group(num_vectors: int, dim: int, threads: int, sum_bytes: int) -> tuple[int, int]:
    """How many samples a block takes on the way back, and how many numbers of a vector at once: a power of two."""
    quads = -(-num_vectors // SIDE)
    width = max(SIDE, 1 << (min(dim, MOST_WIDTH) - 1).bit_length())
    room = MATRIX_BYTES // (sum_bytes * num_vectors * SIDE * quads), ROW_BYTES // (sum_bytes * num_vectors * width)
    return min(threads // (quads * width // SIDE), *room), width


class DotInteraction(Launcher):
    """Sums are float32 for float32 and bfloat16, whose bits come and go as int16; float64 for float64."""

    def products(self, vectors_NVD: Array) -> Array:
        """(N, I): vector i times vector j for each i < j, in the order of i, then j. ValueError: shape or dtype."""
        vectors_NVD, number = self._vectors(vectors_NVD)
        num, num_vectors, dim = vectors_NVD.shape
        products_NI = self._device.empty((num, num_pairs_of(num_vectors)), vectors_NVD.dtype)
        group = product_group(num_vectors, self._device.threads)
        arguments = (vectors_NVD, np.int64(num), np.int32(num_vectors), np.int32(dim), np.int32(group), products_NI)
        if num:
            self._device.launch(
                "dot_interaction", "pair_products", self._blocks(num, group), arguments, (("NUMBER", number),)
            )
        return products_NI

    def gradients(self, vectors_NVD: Array, grads_NI: Array) -> Array:
        """(N, V, D): the gradient of every vector, given that of every product."""
        vectors_NVD, number = self._vectors(vectors_NVD)
        num, num_vectors, dim = vectors_NVD.shape
        grads_NI = self._array("grads", grads_NI, vectors_NVD.dtype, num, num_pairs_of(num_vectors))
        grads_NVD = self._device.empty(vectors_NVD.shape, vectors_NVD.dtype)
        sum_bytes = max(4, vectors_NVD.dtype.itemsize)
        group, width = gradient_group(num_vectors, dim, self._device.threads, sum_bytes)
        sizes = (np.int32(num_vectors), np.int32(dim), np.int32(group), np.int32(width))
        arguments = (vectors_NVD, grads_NI, np.int64(num), *sizes, grads_NVD)
        if num:
            self._device.launch(
                "dot_interaction", "pair_gradients", self._blocks(num, group), arguments, (("NUMBER", number),)
            )
        return grads_NVD

    def tensor(self, array: Array) -> Any:
        """The array as torch's, without a copy."""
        return self._device.tensor(array)

    def _vectors(self, vectors_NVD: Array) -> tuple[Array, int]:
        there = self._device.put(vectors_NVD)
        number = NUMBERS.get(np.dtype(there.dtype))
        if number is None:
            raise ValueError(
                f"vectors {there.dtype}: pairs are of float32, float64, or bfloat16 as the bits of an int16"
            )
        there = self._array("vectors", there, there.dtype, -1, -1, -1)
        if not (2 <= there.shape[1] <= MOST_VECTORS and there.shape[2] >= 1):
            raise ValueError(f"vectors {there.shape}: a sample has 2 to {MOST_VECTORS} of them, with a number at least")
        return there, number

    def _blocks(self, num: int, group: int) -> int:
        assert group >= 1, f"blocks of {self._device.threads} threads are too small"
        return min(-(-num // group), MOST_BLOCKS)
