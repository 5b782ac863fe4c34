"""What a small batch's step needs beside its net: the logistic loss, and the gradient row of each key."""

# N samples, L labels, K keys, P lists that are pooled, F dense features
import math
from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def logistic_loss(logits_NL: Any, labels_NL: Any, weights_N: Any, errors_NL: Any) -> tuple[float, float]:
    """Return the sum of losses times weights, and the sum of weights; leave the derivatives by the logits.

    A label that is NaN counts nothing.
    """
    loss = weight = 0.0
    for n in range(len(logits_NL)):
        for k in range(logits_NL.shape[1]):
            x, y, w = np.float64(logits_NL[n, k]), np.float64(labels_NL[n, k]), np.float64(weights_N[n])
            if math.isnan(y):
                errors_NL[n, k] = 0.0
                continue
            small = math.exp(-abs(x))
            loss += w * (max(x, 0.0) - x * y + math.log1p(small))
            weight += w
            errors_NL[n, k] = w * ((1.0 if x >= 0.0 else small) / (1.0 + small) - y)
    return loss, weight


@njit(nogil=True, cache=True)
def gradient_rows(
    num_samples: int, num_categorical: int, offsets_PN1: Any, is_mean_P: Any, num_keys: int
) -> tuple[Any, Any]:
    """Return for each key the row of its gradient, int64 (K), and the factor of that, float32 (K).

    A sample has rows for its categorical features, then one for each list; a last row is that of all keys after these,
    which have no gradient.
    """
    rows_K, scales_K = np.empty(num_keys, np.int64), np.ones(num_keys, np.float32)
    width, k = num_categorical + len(is_mean_P), 0
    for n in range(num_samples):
        for c in range(num_categorical):
            rows_K[k] = n * width + c
            k += 1
    for p in range(len(is_mean_P)):
        for n in range(num_samples):
            length = offsets_PN1[p, n + 1] - offsets_PN1[p, n]
            scale = np.float32(1) / np.float32(max(length, 1)) if is_mean_P[p] else np.float32(1)
            for _ in range(length):
                rows_K[k], scales_K[k] = n * width + num_categorical + p, scale
                k += 1
    rows_K[k:] = num_samples * width
    return rows_K, scales_K


@njit(nogil=True, cache=True, error_model="numpy")
def observe_numbers(dense_NF: Any, mean_F: Any, variance_F: Any, count_F: Any, memory: float) -> None:
    """Add a batch to running statistics of signed logarithms: Chan, Golub and LeVeque 1979; NaN is no value."""
    for f in range(dense_NF.shape[1]):
        num, total = 0, 0.0
        for n in range(len(dense_NF)):
            x = np.float64(dense_NF[n, f])
            if not math.isnan(x):
                num, total = num + 1, total + math.copysign(math.log1p(abs(x)), x)
        if num == 0:
            continue
        mean, squares = total / num, 0.0
        for n in range(len(dense_NF)):
            x = np.float64(dense_NF[n, f])
            if not math.isnan(x):
                squares += (math.copysign(math.log1p(abs(x)), x) - mean) ** 2
        count, variance = np.float64(count_F[f]), np.float64(variance_F[f]) if count_F[f] > 0 else 0.0
        share, shift = num / (count + num), mean - np.float64(mean_F[f])
        variance_F[f] = (1 - share) * variance + share * (squares / num + shift * shift * (1 - share))
        mean_F[f] = np.float64(mean_F[f]) + share * shift
        count_F[f] = min(count + num, memory)
