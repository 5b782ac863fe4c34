"""Prepares the pass, in the order of the samples: standardized numbers, first uses of rows, crosses."""

# axes: see kernels/cpu/wide/arrays.py
import math
from typing import Any

import numpy as np
from numba import njit

from springtide.kernels.cpu.hashing import mix64
from springtide.kernels.cpu.intrinsics.instructions import prefetch

CROSS_SEED = np.uint64(0x4352_4F53_5345_5321)
MAX_COUNT = 1e6  # values that statistics remember


@njit(nogil=True, cache=True)
def running_numbers(logs_ND: Any, statistics_3D: Any) -> Any:
    """Return numbers (N, X) as springtide_client.wide.fields.standardize does, by the statistics before each sample.

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
    num_fields, num_live, width = num_crossed_NF.shape[1], len(live_P), np.uint64(4)
    num_allocated = min((stop - start) * num_live, most) + num_live
    ids_C, pairs_C = np.empty(num_allocated, np.int64), np.empty(num_allocated, np.int64)
    offsets_R1, num = np.zeros(stop - start + 1, np.int64), 0
    lefts_P, rights_P = np.empty(num_live, np.uint64), np.empty(num_live, np.uint64)
    for k in range(num_live):
        lefts_P[k], rights_P[k] = pair_fields_P2[live_P[k], 0], pair_fields_P2[live_P[k], 1]
    # what a sample needs of a row is in one cache line: its hash on the left, on the right, the first sample
    rows_U4 = np.empty(4 * len(hashes_U), np.uint64)  # the fourth number is not used
    for u in range(len(hashes_U)):
        rows_U4[4 * u] = mix64(hashes_U[u] ^ CROSS_SEED)
        rows_U4[4 * u + 1], rows_U4[4 * u + 2] = hashes_U[u], np.uint64(max(usable_from_U[u], 0))
    lefts_F, rights_F = np.empty(num_fields, np.uint64), np.empty(num_fields, np.uint64)
    usable_F = np.empty(num_fields, np.int64)
    for n in range(start, stop):
        before, longest = num, 1
        for f in range(num_fields):
            longest = max(longest, num_crossed_NF[n, f])
        if num + num_live * longest * longest > num_allocated:
            num_allocated = 2 * num + num_live * longest * longest
            ids_C, pairs_C = _longer(ids_C, num, num_allocated), _longer(pairs_C, num, num_allocated)
        if longest > 1:
            num = _crosses_of_lists(
                rows_S, crossed_from_NF, num_crossed_NF, pair_fields_P2, live_P, rows_U4, n, ids_C, pairs_C, num
            )
        else:
            if n + 1 < stop:
                for f in range(num_fields):
                    if num_crossed_NF[n + 1, f]:
                        prefetch(rows_U4, np.uint64(rows_S[crossed_from_NF[n + 1, f]]) * width)
            for f in range(num_fields):
                usable_F[f] = 0
                if num_crossed_NF[n, f]:
                    at = np.uint64(rows_S[crossed_from_NF[n, f]]) * width
                    lefts_F[f], rights_F[f] = rows_U4[at], rows_U4[at + np.uint64(1)]
                    usable_F[f] = rows_U4[at + np.uint64(2)] <= np.uint64(n)
            for k in range(num_live):  # written where there is none too: the next one overwrites it
                i, j = lefts_P[k], rights_P[k]
                ids_C[num], pairs_C[num] = np.int64(mix64(lefts_F[i] ^ rights_F[j])), live_P[k]
                num += usable_F[i] & usable_F[j]
        if num > most and n > start:
            return ids_C[:before], pairs_C[:before], offsets_R1[: n - start + 1], n
        offsets_R1[n - start + 1] = num
    return ids_C[:num], pairs_C[:num], offsets_R1, stop


@njit(nogil=True, cache=True)
def _crosses_of_lists(
    rows_S: Any,
    crossed_from_NF: Any,
    num_crossed_NF: Any,
    pair_fields_P2: Any,
    live_P: Any,
    rows_U4: Any,
    n: Any,
    ids_C: Any,
    pairs_C: Any,
    num: Any,
) -> Any:
    """Write the crosses of a sample with several ids in a field from place `num` on; return the place after them."""
    for p in live_P:
        i, j = pair_fields_P2[p, 0], pair_fields_P2[p, 1]
        i_from, j_from, num_j = crossed_from_NF[n, i], crossed_from_NF[n, j], num_crossed_NF[n, j]
        for s in range(i_from, i_from + num_crossed_NF[n, i]):
            left = rows_S[s]
            if rows_U4[4 * left + 2] > np.uint64(n):
                continue
            for t in range(j_from, j_from + num_j):
                right = rows_S[t]
                if rows_U4[4 * right + 2] <= np.uint64(n):
                    ids_C[num], pairs_C[num] = np.int64(mix64(rows_U4[4 * left] ^ rows_U4[4 * right + 1])), p
                    num += 1
    return num


@njit(nogil=True, cache=True)
def _longer(array_C: Any, num: Any, num_allocated: Any) -> Any:
    longer_C = np.empty(num_allocated, np.int64)
    longer_C[:num] = array_C[:num]
    return longer_C
