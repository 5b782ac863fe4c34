"""Sums over groups of scores in ascending order, each in one pass: a histogram of a long run has 100,000 groups."""

# G groups, B bins
from typing import Any

import numpy as np

from springtide.kernels.njit import njit


@njit(nogil=True, cache=True)
def pair_sums(positive_G: Any, negative_G: Any) -> Any:
    """Return the weights of positives, of negatives, and of the pairs in the right order; equal scores count half."""
    positives, negatives, pairs = 0.0, 0.0, 0.0
    for g in range(len(positive_G)):
        positive, negative = positive_G[g], negative_G[g]
        pairs += positive * (negatives + 0.5 * negative)
        positives += positive
        negatives += negative
    return positives, negatives, pairs


@njit(nogil=True, cache=True)
def bin_sums(predicted_G: Any, positive_G: Any, negative_G: Any, num_bins: Any) -> Any:
    """Return weight, weight of positives and summed predictions of bins of equal weight, float64 (B, 3).

    A group belongs to the bin of its middle.
    """
    total = 0.0
    for g in range(len(positive_G)):
        total += positive_G[g] + negative_G[g]
    sums_B3, b, until, share = np.zeros((num_bins, 3)), 0, 0.0, total / num_bins
    in_bin, positives, predicted = 0.0, 0.0, 0.0  # of bin b
    for g in range(len(positive_G)):
        weight = positive_G[g] + negative_G[g]
        while b + 1 < num_bins and until + 0.5 * weight >= (b + 1) * share:
            sums_B3[b, 0], sums_B3[b, 1], sums_B3[b, 2] = in_bin, positives, predicted
            in_bin, positives, predicted = 0.0, 0.0, 0.0
            b += 1
        until += weight
        in_bin += weight
        positives += positive_G[g]
        predicted += predicted_G[g] * weight
    sums_B3[b, 0], sums_B3[b, 1], sums_B3[b, 2] = in_bin, positives, predicted
    return sums_B3


@njit(nogil=True, cache=True)
def top_sums(positive_G: Any, negative_G: Any, share: Any) -> Any:
    """Return the weight of all positives, and of those in this share of the weight with the highest scores.

    The group at the border counts in part.
    """
    total, positives = 0.0, 0.0
    for g in range(len(positive_G)):
        total += positive_G[g] + negative_G[g]
        positives += positive_G[g]
    border, until, below = total * (1 - share), 0.0, 0.0
    for g in range(len(positive_G)):
        weight = positive_G[g] + negative_G[g]
        if until + weight > border:
            below += positive_G[g] * ((border - until) / weight)
            break
        until += weight
        below += positive_G[g]
    return positives, positives - below
