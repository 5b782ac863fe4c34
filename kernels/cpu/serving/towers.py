"""Vectors of samples by a perceptron over their rows and numbers: a tower of app.models.retrieval, compiled."""

# N samples, K keys, D dimension of rows, L lists, F dense features, S layers and one, W weights, O of a tower's vectors
import math
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.specialize import holding_gil
from springtide.kernels.njit import njit

MEAN, SUM, MAX = 0, 1, 2
TINY = np.float32(1e-12)
UNROLLED = 4


@njit(nogil=True, cache=True)
def pool(rows_KD: Any, first: Any, last: Any, pooling: Any, pooled_D: Any) -> None:
    """Write the mean, sum or maximum of some rows; zeros for none."""
    pooled_D[:] = 0
    for k in range(first, last):
        for d in range(len(pooled_D)):
            if pooling == MAX:
                pooled_D[d] = rows_KD[k, d] if k == first else max(pooled_D[d], rows_KD[k, d])
            else:
                pooled_D[d] += rows_KD[k, d]
    if pooling == MEAN and last > first:
        for d in range(len(pooled_D)):
            pooled_D[d] /= np.float32(last - first)


# products may be fused with sums; their order is the written one, so that equal calls give equal bits
@njit(nogil=True, cache=True, fastmath={"contract"})
def encode_samples(
    rows_KD: Any,
    num_categorical: Any,
    offsets_LN1: Any,
    pooling_L: Any,
    dense_NF: Any,
    mean_F: Any,
    scale_F: Any,
    max_deviations: Any,
    sizes_S: Any,
    weights_W: Any,
    vectors_NO: Any,
) -> None:
    """Write vectors of length 1. Rows lie as `lookup_keys` orders them: of each sample, then of each list.

    `weights_W` holds the biases of a layer, then its weights by input; `scale_F` is 0 for a number never seen.
    """
    num_samples, num_out = vectors_NO.shape
    dim = rows_KD.shape[1]
    x, y = np.empty(np.max(sizes_S), np.float32), np.empty(np.max(sizes_S), np.float32)
    for n in range(num_samples):
        at = 0
        for k in range(n * num_categorical, (n + 1) * num_categorical):
            for d in range(dim):
                x[at + d] = rows_KD[k, d]
            at += dim
        start = num_samples * num_categorical
        for place in range(len(pooling_L)):
            offsets_N1 = offsets_LN1[place]
            pool(rows_KD, start + offsets_N1[n], start + offsets_N1[n + 1], pooling_L[place], x[at : at + dim])
            start += offsets_N1[num_samples]
            at += dim
        num_dense = len(mean_F)
        for f in range(num_dense):
            value = dense_NF[n, f]
            if np.isnan(value):
                x[at + f], x[at + num_dense + f] = 0, 1
                continue
            near = np.float32(math.copysign(np.log1p(abs(value)), value))
            standard = (near - mean_F[f]) * scale_F[f]
            x[at + f] = min(max(standard, -max_deviations), max_deviations)
            x[at + num_dense + f] = 0
        w = 0
        for layer in range(len(sizes_S) - 1):
            num_in, num_next = sizes_S[layer], sizes_S[layer + 1]
            # by two indices, none of which can be negative: or the loops are not vectorized
            sums = y[:num_next]
            sums[:] = weights_W[w : w + num_next]
            w += num_next
            weights = weights_W[w : w + num_in * num_next].reshape(num_in, num_next)
            w += num_in * num_next
            whole = num_in - num_in % UNROLLED
            for i in range(0, whole, UNROLLED):
                x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
                for o in range(num_next):
                    sums[o] += (
                        x0 * weights[i, o] + x1 * weights[i + 1, o] + x2 * weights[i + 2, o] + x3 * weights[i + 3, o]
                    )
            for i in range(whole, num_in):
                for o in range(num_next):
                    sums[o] += x[i] * weights[i, o]
            if layer < len(sizes_S) - 2:
                for o in range(num_next):
                    x[o] = max(sums[o], np.float32(0))
        total = np.float32(0)
        for o in range(num_out):
            total += y[o] * y[o]
        length = max(np.sqrt(total), TINY)
        for o in range(num_out):
            vectors_NO[n, o] = y[o] / length


encode_samples_holding_gil = holding_gil(encode_samples)


@njit(cache=True)
def dot_products(vectors_NO: Any, query_O: Any, scale: Any, scores_N: Any) -> None:
    """Write the dot product of each vector with the query, times a factor."""
    for n in range(len(vectors_NO)):
        total = np.float32(0)
        for o in range(len(query_O)):
            total += vectors_NO[n, o] * query_O[o]
        scores_N[n] = total * scale
