"""Statistics of groups of scores beside their AUC: the calibration curve, its error, the lift of the highest scores.

Bins hold equal weight, not equal ranges of scores: where clicks are rare, all scores are in the first tenth of 0..1.
"""

# B bins
from typing import NamedTuple

import numpy as np

from springtide.app.scores.auc import ScoreGroups
from springtide.kernels.cpu.score_groups import bin_sums, top_sums

NUM_BINS = 20
TOP_SHARE = 0.1  # of the weight, by score: the top decile


class CalibrationBin(NamedTuple):
    """Samples of neighboring scores: the mean prediction, the mean label, and their weight."""

    predicted: float
    seen: float
    weight: float


def calibration_curve(groups: ScoreGroups, *, num_bins: int = NUM_BINS) -> list[CalibrationBin]:
    """Return bins of equal weight by ascending score. Equal scores share one bin, so bins without any are left out."""
    sums_B3 = bin_sums(groups.predicted_G, groups.positive_G, groups.negative_G, num_bins)
    return [
        CalibrationBin(predicted / weight, positive / weight, weight)
        for weight, positive, predicted in sums_B3.tolist()
        if weight > 0
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
    positives, top_positives = top_sums(groups.positive_G, groups.negative_G, TOP_SHARE)
    return float(top_positives / positives / TOP_SHARE) if positives > 0 else None


def normalized_entropy(logloss: float | None, label_rate: float | None) -> float | None:
    """Return the logloss over that of always predicting the label rate (He et al. 2014); None if that is 0
    or one of them is not known.

    Below 1 the scores say more than the rate alone. 1 minus it is the relative information gain.
    """
    if logloss is None or label_rate is None or not 0 < label_rate < 1:
        return None
    return float(logloss / -(label_rate * np.log(label_rate) + (1 - label_rate) * np.log1p(-label_rate)))
