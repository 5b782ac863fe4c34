"""The nearest of many vectors: by comparing all of them, or by an inverted file."""

# I vectors, O dimension, M candidates, C cells, S a sample of the vectors, Q queries
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.serving.nearest_neighbors import (
    BLOCK_VECTORS,
    NO_PLACE,
    UNROLLED,
    add_by_cell,
    fill_blocks,
    measure_steps,
    nearest_cells,
    search_cells,
    search_cells_holding_gil,
)

FloatArray = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]


class ExactIndex:
    """Compares all vectors: one matrix product, and a partition of its results."""

    is_exact = True

    def __init__(self, vectors_IO: FloatArray) -> None:
        self.vectors_IO = vectors_IO

    def nearest(self, query_O: FloatArray, num: int) -> Places:
        """Return the places of the `num` vectors with the largest dot products, in any order; fewer if there are."""
        return largest(self.vectors_IO @ query_O, num)


def largest(scores_I: FloatArray, num: int) -> Places:
    """Return the places of the largest scores, in any order."""
    if num >= len(scores_I):
        return np.arange(len(scores_I))
    return np.argpartition(scores_I, len(scores_I) - num)[len(scores_I) - num :]


ITERATIONS, SAMPLES_PER_CELL = 6, 64
CHUNK_VECTORS = 4_096
LEAST_SHARE = 1 / 128  # of the vectors are compared, or more
RECALL_GOAL, RECALL_NUM = 0.99, 10
ROUNDING = 1e-5  # vectors whose dot products differ by less are equally near
EVERYTHING = np.zeros(0, np.bool_)


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """Cells of near vectors, found by k-means, of which a search reads a few.

    It is built in seconds for a million vectors, so that vectors can be new ones with it; a graph takes minutes.
    Immutable. `num_to_scan`: so many vectors are compared for a query, at least.
    """

    vectors_IO: FloatArray
    centroids_OC: FloatArray
    steps_C: FloatArray
    blocks_C1: npt.NDArray[np.int64]
    codes_BOV: npt.NDArray[np.int8]
    places_BV: npt.NDArray[np.int32]
    num_to_scan: int

    is_exact = False

    @staticmethod
    def build(vectors_IO: FloatArray, *, between: Callable[[], bool] = lambda: True) -> "InvertedFile | None":
        """Divide the vectors among cells. `between` is called now and then, and ends it by returning False: then None.

        The number of cells grows with the root of the number of vectors: to choose cells then costs as much as to read
        them.
        """
        num_vectors = len(vectors_IO)
        centroids_CO = spherical_means(vectors_IO, max(1, math.isqrt(num_vectors) // 2), between)
        cells_I = None if centroids_CO is None else assign(vectors_IO, centroids_CO, between)
        if centroids_CO is None or cells_I is None:
            return None
        return _filled(vectors_IO, centroids_CO, cells_I, max(1, int(LEAST_SHARE * num_vectors)))

    def over(self, vectors_IO: FloatArray, cells_I: npt.NDArray[np.int64]) -> "InvertedFile":
        """Return other vectors in these cells, in which `cells_of` has put them; the same share of them is read."""
        num_to_scan = self.num_to_scan * len(vectors_IO) // len(self.vectors_IO)
        return _filled(vectors_IO, np.ascontiguousarray(self.centroids_OC.T), cells_I, max(1, num_to_scan))

    def cells_of(self, vectors_IO: FloatArray) -> npt.NDArray[np.int64]:
        """Return the cell of each of some other vectors."""
        cells_I = assign(vectors_IO, np.ascontiguousarray(self.centroids_OC.T), lambda: True)
        assert cells_I is not None
        return cells_I

    def scanning(self, num_to_scan: int) -> "InvertedFile":
        """Return the same cells, of which a search reads more or fewer."""
        return replace(self, num_to_scan=min(num_to_scan, len(self.vectors_IO)))

    def nearest(self, query_O: FloatArray, num: int, passes_I: npt.NDArray[np.bool_] = EVERYTHING) -> Places:
        """Return the places of vectors with large dot products, `num` or as many as pass, in any order."""
        found_1N = np.empty((1, num), np.int64)
        search_cells_holding_gil(*self._arguments(query_O[None], passes_I), found_1N)
        places: Places = found_1N[0]
        return places if places[-1] != NO_PLACE else places[places != NO_PLACE]

    def nearest_of_each(self, queries_QO: FloatArray, num: int) -> npt.NDArray[np.int64]:
        """Return places for several queries, int64 (Q, num); where there are no more, -1."""
        found_QN = np.empty((len(queries_QO), num), np.int64)
        search_cells(*self._arguments(queries_QO, EVERYTHING), found_QN)
        return found_QN

    def tuned(
        self, queries_QO: FloatArray, num: int, *, between: Callable[[], bool] = lambda: True
    ) -> "InvertedFile | None":
        """Return the same cells, of which so many are read that `num` candidates hold nearly all of the ten best.

        `between` is called now and then, and ends it by returning False: then None.
        """
        num_best, num = min(RECALL_NUM, len(self.vectors_IO)), min(num, len(self.vectors_IO))
        worst_Q = np.empty(len(queries_QO), np.float32)
        for query, query_O in enumerate(queries_QO):
            worst_Q[query] = np.partition(self.vectors_IO @ query_O, -num_best)[-num_best]
            if not between():
                return None
        index = self
        while index.num_to_scan < len(self.vectors_IO):
            found_QN = index.nearest_of_each(queries_QO, num)
            near_QN = np.einsum("qno,qo->qn", self.vectors_IO[found_QN], queries_QO)
            num_found_Q = np.minimum(num_best, (near_QN >= worst_Q[:, None] - ROUNDING).sum(axis=1))
            if num_found_Q.mean() >= RECALL_GOAL * num_best:
                break
            index = index.scanning(2 * index.num_to_scan)
        return index

    def _arguments(self, queries_QO: FloatArray, passes_I: npt.NDArray[np.bool_]) -> tuple[object, ...]:
        num_to_scan = self.num_to_scan
        if len(passes_I):  # of those that pass the same share
            num_to_scan = num_to_scan * int(np.count_nonzero(passes_I)) // len(passes_I)
        arrays = (self.centroids_OC, self.steps_C, self.blocks_C1, self.codes_BOV, self.places_BV, self.vectors_IO)
        return (np.ascontiguousarray(queries_QO), *arrays, passes_I, num_to_scan)


def _filled(
    vectors_IO: FloatArray, centroids_CO: FloatArray, cells_I: npt.NDArray[np.int64], num_to_scan: int
) -> InvertedFile:
    num_cells, num_dims = centroids_CO.shape
    steps_C = np.zeros(num_cells, np.float32)
    measure_steps(vectors_IO, cells_I, centroids_CO, steps_C)
    num_blocks_C = -(-np.bincount(cells_I, minlength=num_cells) // BLOCK_VECTORS)
    blocks_C1 = np.concatenate([[0], np.cumsum(num_blocks_C)]).astype(np.int64)
    num_blocks, num_padded = int(blocks_C1[-1]), -(-num_dims // UNROLLED) * UNROLLED
    codes_BOV = np.zeros((num_blocks, num_padded, BLOCK_VECTORS), np.int8)
    places_BV = np.full((num_blocks, BLOCK_VECTORS), NO_PLACE, np.int32)
    fill_blocks(vectors_IO, cells_I, centroids_CO, steps_C, blocks_C1, codes_BOV, places_BV)
    centroids_OC = np.ascontiguousarray(centroids_CO.T)
    return InvertedFile(vectors_IO, centroids_OC, steps_C, blocks_C1, codes_BOV, places_BV, num_to_scan)


def spherical_means(vectors_IO: FloatArray, num_cells: int, between: Callable[[], bool]) -> FloatArray | None:
    """Return centroids of length 1, float32 (C, O), by k-means on a sample (Dhillon and Modha 2001)."""
    draw = np.random.default_rng(0)
    num_samples = min(len(vectors_IO), SAMPLES_PER_CELL * num_cells)
    sample_SO = vectors_IO[np.sort(draw.choice(len(vectors_IO), num_samples, replace=False))]
    centroids_CO = sample_SO[draw.choice(num_samples, num_cells, replace=False)]
    for _ in range(ITERATIONS):
        cells_S = assign(sample_SO, centroids_CO, between)
        if cells_S is None:
            return None
        sums_CO, counts_C = np.zeros_like(centroids_CO), np.zeros(num_cells, np.int64)
        add_by_cell(sample_SO, cells_S, sums_CO, counts_C)
        lengths_C = np.linalg.norm(sums_CO, axis=1)
        usable_C = lengths_C > 0
        centroids_CO[usable_C] = sums_CO[usable_C] / lengths_C[usable_C, None]
        centroids_CO[~usable_C] = sample_SO[draw.choice(num_samples, int((~usable_C).sum()))]
    return centroids_CO


def assign(
    vectors_IO: FloatArray, centroids_CO: FloatArray, between: Callable[[], bool]
) -> npt.NDArray[np.int64] | None:
    """Return the nearest centroid of each vector; None once `between` says so."""
    cells_I = np.empty(len(vectors_IO), np.int64)
    centroids_OC = np.ascontiguousarray(centroids_CO.T)
    for start in range(0, len(vectors_IO), CHUNK_VECTORS):
        chunk = slice(start, start + CHUNK_VECTORS)
        nearest_cells(vectors_IO[chunk] @ centroids_OC, cells_I[chunk])
        if not between():
            return None
    return cells_I
