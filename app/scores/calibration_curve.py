"""What groups of scores say beside their AUC: the calibration curve, its error, the lift of the highest scores.

Bins hold equal weight, not equal ranges of scores: where clicks are rare, all scores are in the first tenth of 0..1.
"""

# G groups, B bins
from typing import NamedTuple

import numpy as np

from app.scores.auc import Float64Array, ScoreGroups

NUM_BINS = 20
TOP_SHARE = 0.1  # of the weight, by score: the top decile


class CalibrationBin(NamedTuple):
    """Samples of neighboring scores: the mean prediction, the mean label, and their weight."""

    predicted: float
    seen: float
    weight: float


def calibration_curve(groups: ScoreGroups, *, num_bins: int = NUM_BINS) -> list[CalibrationBin]:
    """Return bins of equal weight by ascending score. Equal scores share one bin, so bins without any are left out."""
    weight_G = groups.positive_G + groups.negative_G
    until_G = np.cumsum(weight_G)
    total = float(until_G[-1]) if len(until_G) else 0.0
    if not total > 0:
        return []
    # a group belongs to the bin of its middle
    edges = np.searchsorted(until_G - weight_G / 2, np.arange(1, num_bins) * (total / num_bins))
    weight_B = _sums_between(edges, weight_G)
    positive_B = _sums_between(edges, groups.positive_G)
    predicted_B = _sums_between(edges, groups.predicted_G * weight_G)
    return [
        CalibrationBin(float(predicted_B[b] / weight_B[b]), float(positive_B[b] / weight_B[b]), float(weight_B[b]))
        for b in np.flatnonzero(weight_B > 0)
    ]


def calibration_error(curve: list[CalibrationBin]) -> float | None:
    """Return the expected calibration error: the mean over weight of |predicted - seen|; None without samples.

    Naeini, Cooper and Hauskrecht 2015, with bins of equal weight as in Nixon et al. 2019.
    """
    weight = sum(each.weight for each in curve)
    return sum(each.weight * abs(each.predicted - each.seen) for each in curve) / weight if weight > 0 else None


def top_decile_lift(groups: ScoreGroups) -> float | None:
    """Return the label rate of the tenth with the highest scores over the label rate of all; None without positives.

    Samples of one score at the border count in part.
    """
    until_G = np.cumsum(groups.positive_G + groups.negative_G)
    positive_until_G = np.cumsum(groups.positive_G)
    if not len(until_G) or not positive_until_G[-1] > 0:
        return None
    border = until_G[-1] * (1 - TOP_SHARE)
    below = np.interp(border, np.concatenate([[0.0], until_G]), np.concatenate([[0.0], positive_until_G]))
    return float((1 - below / positive_until_G[-1]) / TOP_SHARE)


def normalized_entropy(logloss: float | None, label_rate: float | None) -> float | None:
    """Return the logloss over that of always predicting the label rate (He et al. 2014); None if that is 0
    or one of them is not known.

    Below 1 the scores say more than the rate alone. 1 minus it is the relative information gain.
    """
    if logloss is None or label_rate is None or not 0 < label_rate < 1:
        return None
    return float(logloss / -(label_rate * np.log(label_rate) + (1 - label_rate) * np.log1p(-label_rate)))


def _sums_between(edges: "np.ndarray[tuple[int], np.dtype[np.intp]]", values_G: Float64Array) -> Float64Array:
    """Return the sums of the slices that the edges cut."""
    bounds = np.concatenate([[0], edges, [len(values_G)]])
    until = np.concatenate([[0.0], np.cumsum(values_G)])[bounds]
    return np.diff(until)
