"""Running statistics of dense features."""

# N samples, F dense features
import math
from typing import Any

import numpy as np

from springtide.kernels.njit import njit


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
