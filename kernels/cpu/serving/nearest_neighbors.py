"""How near rows are to one of them: a row's number depends on its values alone, not on where it lies."""

# R rows, D dimension; I vectors, O their dimension, C cells, B blocks, V vectors of a block, Q queries,
# N places wanted, M places in a heap
import math
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.specialize import holding_gil
from springtide.kernels.njit import njit

COSINE, DOT, EUCLIDEAN = 0, 1, 2


# sums in float64 may be reordered, or no loop would be vectorized; the order is the same for every row
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def measure_nearness(
    values_RD: Any, features_R: Any, ids_R: Any, feature: Any, without_id: Any, query_D: Any, metric: Any, near_R: Any
) -> None:
    """Larger is nearer, float32: the cosine (0 beside a row of zeros), the dot product, or minus the distance.

    Minus infinity for rows of other features and for `without_id`.
    """
    dim = len(query_D)
    own = 0.0
    for d in range(dim):
        own += np.float64(query_D[d]) * np.float64(query_D[d])
    for r in range(len(ids_R)):
        if features_R[r] != feature or ids_R[r] == without_id:
            near_R[r] = -np.inf
            continue
        row_D = values_RD[r]
        total, length = 0.0, 0.0
        if metric == EUCLIDEAN:
            for d in range(dim):
                apart = np.float64(row_D[d]) - np.float64(query_D[d])
                total += apart * apart
            near_R[r] = -math.sqrt(total)
        elif metric == DOT:
            for d in range(dim):
                total += np.float64(row_D[d]) * np.float64(query_D[d])
            near_R[r] = total
        else:
            for d in range(dim):
                value = np.float64(row_D[d])
                total += value * np.float64(query_D[d])
                length += value * value
            scale = math.sqrt(length) * math.sqrt(own)
            near_R[r] = 0.0 if scale == 0.0 else total / scale


BLOCK_VECTORS = 64
UNROLLED = 4  # dimensions of a block are padded to a multiple of this
LARGEST_CODE = 127
REFINED = 2  # times as many as are wanted are compared as float32
NO_PLACE = -1


@njit(nogil=True, cache=True)
def nearest_cells(scores_IC: Any, cells_I: Any) -> None:
    """Write the column of the largest score of each row; the first of equal ones."""
    for i in range(len(scores_IC)):
        best, cell = scores_IC[i, 0], 0
        for c in range(1, scores_IC.shape[1]):
            if scores_IC[i, c] > best:
                best, cell = scores_IC[i, c], c
        cells_I[i] = cell


@njit(nogil=True, cache=True)
def add_by_cell(vectors_IO: Any, cells_I: Any, sums_CO: Any, counts_C: Any) -> None:
    """Add each vector to the sum of its cell."""
    for i in range(len(cells_I)):
        counts_C[cells_I[i]] += 1
        for o in range(vectors_IO.shape[1]):
            sums_CO[cells_I[i], o] += vectors_IO[i, o]


@njit(nogil=True, cache=True)
def measure_steps(vectors_IO: Any, cells_I: Any, centroids_CO: Any, steps_C: Any) -> None:
    """Write the length of a step of each cell's codes."""
    for i in range(len(cells_I)):
        cell = cells_I[i]
        for o in range(vectors_IO.shape[1]):
            step = abs(vectors_IO[i, o] - centroids_CO[cell, o]) / np.float32(LARGEST_CODE)
            steps_C[cell] = max(steps_C[cell], step)


@njit(nogil=True, cache=True)
def fill_blocks(
    vectors_IO: Any, cells_I: Any, centroids_CO: Any, steps_C: Any, blocks_C1: Any, codes_BOV: Any, places_BV: Any
) -> None:
    """Write codes and places of all vectors; cell c has the blocks from `blocks_C1[c]` to `blocks_C1[c + 1]`."""
    lanes_C = blocks_C1[:-1] * BLOCK_VECTORS
    for i in range(len(cells_I)):
        cell = cells_I[i]
        block, lane = lanes_C[cell] // BLOCK_VECTORS, lanes_C[cell] % BLOCK_VECTORS
        lanes_C[cell] += 1
        places_BV[block, lane] = i
        if steps_C[cell] > 0:
            for o in range(vectors_IO.shape[1]):
                code = np.rint((vectors_IO[i, o] - centroids_CO[cell, o]) / steps_C[cell])
                codes_BOV[block, o, lane] = np.int8(min(max(code, -LARGEST_CODE), LARGEST_CODE))


@njit(nogil=True, cache=True)
def keep_largest(scores_M: Any, places_M: Any, length: Any, num: Any) -> None:
    """Move the `num` largest of the first `length` to the front, in any order (Hoare's quickselect)."""
    low, high = 0, length - 1
    while low < high:
        pivot = scores_M[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while scores_M[i] > pivot:
                i += 1
            while scores_M[j] < pivot:
                j -= 1
            if i <= j:
                scores_M[i], scores_M[j] = scores_M[j], scores_M[i]
                places_M[i], places_M[j] = places_M[j], places_M[i]
                i += 1
                j -= 1
        if num - 1 <= j:
            high = j
        elif num - 1 >= i:
            low = i
        else:
            return


# products may be fused with sums; their order is the written one, so that equal calls give equal bits
@njit(nogil=True, cache=True, fastmath={"contract"})
def search_cells(
    queries_QO: Any,
    centroids_OC: Any,
    steps_C: Any,
    blocks_C1: Any,
    codes_BOV: Any,
    places_BV: Any,
    vectors_IO: Any,
    passes_I: Any,
    num_to_scan: Any,
    found_QN: Any,
) -> None:
    """Write the places of the vectors with the largest dot products, in any order, then -1 where there are no more.

    Cells are read, the nearest centroid first, until `num_to_scan` vectors have been compared and as many found as are
    wanted. Unless `passes_I` has length 0, only vectors that pass are compared.
    """
    num_dims, num_cells = centroids_OC.shape
    num_wanted = found_QN.shape[1]
    num_kept = REFINED * num_wanted
    size = 2 * num_kept + BLOCK_VECTORS
    scores_M, places_M = np.empty(size, np.float32), np.empty(size, np.int64)
    near_C, sums_V = np.empty(num_cells, np.float32), np.empty(BLOCK_VECTORS, np.float32)
    padded = np.zeros(codes_BOV.shape[1], np.float32)
    is_filtered = len(passes_I) > 0
    for query in range(len(queries_QO)):
        near_C[:] = 0
        for o in range(num_dims):
            value = queries_QO[query, o]
            for c in range(num_cells):
                near_C[c] += value * centroids_OC[o, c]
        length, scanned, threshold = 0, 0, np.float32(-np.inf)
        for _ in range(num_cells):
            cell = 0
            for c in range(1, num_cells):
                if near_C[c] > near_C[cell]:
                    cell = c
            center, step = near_C[cell], steps_C[cell]
            near_C[cell] = -np.inf
            for o in range(num_dims):
                padded[o] = queries_QO[query, o] * step
            for block in range(blocks_C1[cell], blocks_C1[cell + 1]):
                sums_V[:] = center
                for o in range(0, len(padded), UNROLLED):
                    q0, q1, q2, q3 = padded[o], padded[o + 1], padded[o + 2], padded[o + 3]
                    for v in range(BLOCK_VECTORS):
                        sums_V[v] += (
                            q0 * np.float32(codes_BOV[block, o, v])
                            + q1 * np.float32(codes_BOV[block, o + 1, v])
                            + q2 * np.float32(codes_BOV[block, o + 2, v])
                            + q3 * np.float32(codes_BOV[block, o + 3, v])
                        )
                if not is_filtered:
                    scanned += BLOCK_VECTORS
                for v in range(BLOCK_VECTORS):
                    if sums_V[v] > threshold or is_filtered:
                        place = places_BV[block, v]
                        if place == NO_PLACE:
                            continue
                        if is_filtered:
                            if not passes_I[place]:
                                continue
                            scanned += 1
                            if sums_V[v] <= threshold:
                                continue
                        scores_M[length], places_M[length] = sums_V[v], place
                        length += 1
                if length > 2 * num_kept:
                    keep_largest(scores_M, places_M, length, num_kept)
                    length, threshold = num_kept, np.min(scores_M[:num_kept])
            if scanned >= num_to_scan and length >= num_wanted:
                break
        if length > num_kept:
            keep_largest(scores_M, places_M, length, num_kept)
            length = num_kept
        for m in range(length):
            total = np.float32(0)
            for o in range(num_dims):
                total += queries_QO[query, o] * vectors_IO[places_M[m], o]
            scores_M[m] = total
        keep_largest(scores_M, places_M, length, num_wanted)
        for n in range(num_wanted):
            found_QN[query, n] = places_M[n] if n < length else NO_PLACE


search_cells_holding_gil = holding_gil(search_cells)
