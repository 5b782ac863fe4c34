"""What the pass needs beforehand, in the order of the samples: standardized numbers, first uses of rows, crosses."""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.hashing import mix64

CROSS_SEED = np.uint64(0x4352_4F53_5345_5321)
MAX_COUNT = 1e6  # values that statistics remember


@njit(nogil=True, cache=True)
def running_numbers(logs_ND: Any, statistics_3D: Any) -> Any:
    """Return numbers (N, X) as springtide_client.wide.bins.standardize does, by the statistics before each sample.

    `statistics_3D` is brought up to date.
    """
    num_samples, num_dense = logs_ND.shape
    x_NX = np.zeros((num_samples, 2 * num_dense))
    for n in range(num_samples):
        for d in range(num_dense):
            value = logs_ND[n, d]
            if math.isnan(value):
                x_NX[n, 2 * d + 1] = 1.0
                continue
            mean, variance, count = statistics_3D[0, d], statistics_3D[1, d], statistics_3D[2, d]
            if count > 0.0:
                x_NX[n, 2 * d] = min(max((value - mean) / math.sqrt(variance + 1e-4), -5.0), 5.0)
            count = min(count + 1.0, MAX_COUNT)
            change = value - mean
            mean += change / count
            if count > 1.0:
                variance += (change * (value - mean) - variance) / count
            statistics_3D[0, d], statistics_3D[1, d], statistics_3D[2, d] = mean, variance, count
    return x_NX


@njit(nogil=True, cache=True)
def first_samples(rows_S: Any, offsets_N1: Any, num_rows: Any) -> Any:
    """Return the first sample that has each row, int64 (U); N where none has."""
    num_samples = len(offsets_N1) - 1
    first_U = np.full(num_rows, num_samples, np.int64)
    for n in range(num_samples):
        for s in range(offsets_N1[n], offsets_N1[n + 1]):
            if first_U[rows_S[s]] == num_samples:
                first_U[rows_S[s]] = n
    return first_U


@njit(nogil=True, cache=True)
def potential_crosses(num_crossed_NF: Any) -> Any:
    """Return how many crosses each sample had if all pairs lived, int64 (N)."""
    potential_N = np.zeros(len(num_crossed_NF), np.int64)
    for n in range(len(num_crossed_NF)):
        total, squares = 0, 0
        for f in range(num_crossed_NF.shape[1]):
            total += num_crossed_NF[n, f]
            squares += num_crossed_NF[n, f] * num_crossed_NF[n, f]
        potential_N[n] = (total * total - squares) // 2
    return potential_N


@njit(nogil=True, cache=True)
def crosses_of(
    rows_S: Any,
    crossed_from_NF: Any,
    num_crossed_NF: Any,
    pair_fields_P2: Any,
    live_P: Any,
    usable_from_U: Any,
    hashes_U: Any,
    start: Any,
    stop: Any,
    most: Any,
) -> Any:
    """Return ids, pairs and offsets of the crosses of samples start to the returned one, at most `stop`.

    A row takes part from sample usable_from_U on. It ends early before the sample that would make more than `most`
    crosses, but not before the first.
    """
    num_allocated = 1024
    ids_C, pairs_C = np.empty(num_allocated, np.int64), np.empty(num_allocated, np.int64)
    offsets_R1 = np.zeros(stop - start + 1, np.int64)
    num, lefts_U = 0, np.empty(len(hashes_U), np.uint64)
    for u in range(len(hashes_U)):
        lefts_U[u] = mix64(hashes_U[u] ^ CROSS_SEED)
    for n in range(start, stop):
        before = num
        for p in live_P:
            i, j = pair_fields_P2[p, 0], pair_fields_P2[p, 1]
            i_from, j_from, num_j = crossed_from_NF[n, i], crossed_from_NF[n, j], num_crossed_NF[n, j]
            for s in range(i_from, i_from + num_crossed_NF[n, i]):
                left = rows_S[s]
                if usable_from_U[left] > n:
                    continue
                for t in range(j_from, j_from + num_j):
                    right = rows_S[t]
                    if usable_from_U[right] > n:
                        continue
                    if num == num_allocated:
                        num_allocated *= 2
                        more_C = np.empty(num_allocated, np.int64)
                        more_C[:num] = ids_C
                        ids_C = more_C
                        more_C = np.empty(num_allocated, np.int64)
                        more_C[:num] = pairs_C
                        pairs_C = more_C
                    ids_C[num] = np.int64(mix64(lefts_U[left] ^ hashes_U[right]))
                    pairs_C[num] = p
                    num += 1
        if num > most and n > start:
            return ids_C[:before], pairs_C[:before], offsets_R1[: n - start + 1], n
        offsets_R1[n - start + 1] = num
    return ids_C[:num], pairs_C[:num], offsets_R1, stop
