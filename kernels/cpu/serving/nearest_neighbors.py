"""How near rows are to one of them: a row's number depends on its values alone, not on where it lies."""

# R rows, D dimension
import math
from typing import Any

import numpy as np
from numba import njit

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
