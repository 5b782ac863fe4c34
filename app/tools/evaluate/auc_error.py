"""Standard errors of an AUC and of the difference of two AUCs of the same samples (DeLong et al. 1988).

They take the samples as independent. Computed by ranks, in n log n, as Sun and Xu 2014 do; weights are allowed.
"""

# N samples
import math

import numpy as np

from springtide.app.scores.auc import Float64Array


def standard_error(scores_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> float | None:
    """Return the standard error of an AUC from each sample's weight as a positive and as a negative.

    None with fewer than two samples of a class.
    """
    return _error(placements(scores_N, positive_N, negative_N), positive_N, negative_N)


def difference_error(
    scores_N: Float64Array, others_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array
) -> float | None:
    """Return the standard error of the AUC of `scores_N` minus that of `others_N`, for the same samples."""
    first = placements(scores_N, positive_N, negative_N)
    second = placements(others_N, positive_N, negative_N)
    return _error((first[0] - second[0], first[1] - second[1]), positive_N, negative_N)


def placements(
    scores_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return for each sample the share of negatives below its score, and of positives above it; ties count half.

    The mean of the first over the positives is the AUC, as is the mean of the second over the negatives.
    """
    _, place_N = np.unique(scores_N, return_inverse=True)
    negative_P, positive_P = np.bincount(place_N, negative_N), np.bincount(place_N, positive_N)
    below_P = np.cumsum(negative_P) - 0.5 * negative_P
    above_P = positive_P.sum() - np.cumsum(positive_P) + 0.5 * positive_P
    return (
        (below_P / max(float(negative_P.sum()), 1e-300))[place_N],
        (above_P / max(float(positive_P.sum()), 1e-300))[place_N],
    )


def _error(
    placed: tuple[Float64Array, Float64Array], positive_N: Float64Array, negative_N: Float64Array
) -> float | None:
    variance = 0.0
    for values_N, weights_N in zip(placed, (positive_N, negative_N), strict=True):
        num, total = int(np.count_nonzero(weights_N)), float(weights_N.sum())
        if num < 2:
            return None
        mean = float((weights_N * values_N).sum()) / total
        spread = float((np.square(weights_N) * np.square(values_N - mean)).sum())
        variance += spread / total**2 * num / (num - 1)
    return math.sqrt(variance)
