"""The logistic loss of a small batch, and its derivatives."""

# N samples, L labels
import math
from typing import Any

import numpy as np

from springtide.kernels.njit import njit


@njit(nogil=True, cache=True, error_model="numpy")
def logistic_loss(logits_NL: Any, labels_NL: Any, weights_NL: Any, errors_NL: Any) -> tuple[float, float]:
    """Return the sum of losses times weights, and the sum of weights; leave the derivatives by the logits.

    A label that is NaN counts nothing.
    """
    loss = weight = 0.0
    for n in range(len(logits_NL)):
        for k in range(logits_NL.shape[1]):
            x, y, w = np.float64(logits_NL[n, k]), np.float64(labels_NL[n, k]), np.float64(weights_NL[n, k])
            if math.isnan(y):
                errors_NL[n, k] = 0.0
                continue
            small = math.exp(-abs(x))
            loss += w * (max(x, 0.0) - x * y + math.log1p(small))
            weight += w
            errors_NL[n, k] = w * ((1.0 if x >= 0.0 else small) / (1.0 + small) - y)
    return loss, weight
