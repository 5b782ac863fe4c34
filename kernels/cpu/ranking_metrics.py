"""Ranking metrics of a group of samples, such as those of a request: AUC, reciprocal rank, NDCG@k, recall@k.

Equal scores must not reward the order of input: AUC counts them half, the others are means over all orders of samples
of equal scores (McSherry and Najork 2008). A label between 0 and 1 counts in part for both classes of the AUC, and is
the gain of NDCG and recall; for the reciprocal rank any label above 0 is relevant. NaN where a metric is undefined.
"""

# N samples, G groups, K values of k, M metrics
import math
from typing import Any

import numpy as np

from springtide.kernels.njit import njit

AUC, RECIPROCAL_RANK, NUM_PLAIN = 0, 1, 2  # then NDCG at each k, then recall at each k
GAPS = np.array([701, 301, 132, 57, 23, 10, 4, 1])  # of Shell's sort (Ciura 2001): groups are small


@njit(nogil=True, cache=True)
def group_values(scores_N: Any, labels_N: Any, starts_G1: Any, at_K: Any) -> Any:
    """Return the metrics of groups of samples that follow each other, float64 (G, M).

    `starts_G1`: where each begins, and the end. Samples whose label is NaN do not count; scores are finite.
    """
    num_groups = len(starts_G1) - 1
    values_GM = np.full((num_groups, NUM_PLAIN + 2 * len(at_K)), np.nan)
    most = 1
    for g in range(num_groups):
        most = max(most, starts_G1[g + 1] - starts_G1[g])
    own_scores_N, own_labels_N = np.empty(most, scores_N.dtype), np.empty(most, labels_N.dtype)
    for g in range(num_groups):
        num = 0
        for n in range(starts_G1[g], starts_G1[g + 1]):
            if not math.isnan(labels_N[n]):
                own_scores_N[num], own_labels_N[num] = scores_N[n], labels_N[n]
                num += 1
        write_metrics(own_scores_N, own_labels_N, num, at_K, values_GM[g])
    return values_GM


@njit(nogil=True, cache=True)
def write_metrics(scores_N: Any, labels_N: Any, num: Any, at_K: Any, values_M: Any) -> None:
    """Write the metrics of the first `num` samples; both arrays are sorted."""
    values_M[:] = np.nan
    positives, gains = 0.0, 0
    for n in range(num):
        positives += labels_N[n]
        gains += labels_N[n] > 0
    negatives = num - positives
    if gains == 0:
        return
    sort_by_score(scores_N, labels_N, num)
    num_at = len(at_K)
    for m in range(RECIPROCAL_RANK, len(values_M)):
        values_M[m] = 0.0
    pairs, negatives_above, is_found, start = 0.0, 0.0, False, 0
    while start < num:
        stop, positive, relevant = start, 0.0, 0
        while stop < num and scores_N[stop] == scores_N[start]:
            positive += labels_N[stop]
            relevant += labels_N[stop] > 0
            stop += 1
        negative = (stop - start) - positive
        pairs += positive * (negatives - negatives_above - 0.5 * negative)
        negatives_above += negative
        if relevant > 0 and not is_found:
            values_M[RECIPROCAL_RANK] = _mean_reciprocal(start, stop - start, relevant)
            is_found = True
        for k in range(num_at):
            until, total = min(stop, at_K[k]), 0.0
            for place in range(start, until):
                total += 1.0 / math.log2(place + 2.0)
            values_M[NUM_PLAIN + k] += positive / (stop - start) * total
            values_M[NUM_PLAIN + num_at + k] += positive * max(until - start, 0) / (stop - start)
        start = stop
    if positives > 0 and negatives > 0:
        values_M[AUC] = pairs / (positives * negatives)
    sort_by_score(labels_N, scores_N, num)
    for k in range(num_at):
        ideal = 0.0
        for place in range(min(num, at_K[k])):
            ideal += labels_N[place] / math.log2(place + 2.0)
        values_M[NUM_PLAIN + k] /= ideal
        values_M[NUM_PLAIN + num_at + k] /= positives


@njit(nogil=True, cache=True)
def sort_by_score(scores_N: Any, labels_N: Any, num: Any) -> None:
    """Sort the first `num` of both arrays by descending score."""
    for gap in GAPS:
        for n in range(gap, num):
            score, label, at = scores_N[n], labels_N[n], n
            while at >= gap and scores_N[at - gap] < score:
                scores_N[at], labels_N[at] = scores_N[at - gap], labels_N[at - gap]
                at -= gap
            scores_N[at], labels_N[at] = score, label


@njit(nogil=True, cache=True)
def _mean_reciprocal(num_before: Any, num: Any, relevant: Any) -> Any:
    """Return the mean of 1 over the place of the first relevant of `num` samples in any order, after others."""
    mean, none_yet = 0.0, 1.0
    for place in range(num - relevant + 1):
        share = relevant / (num - place)
        mean += none_yet * share / (num_before + place + 1)
        none_yet *= 1.0 - share
    return mean
