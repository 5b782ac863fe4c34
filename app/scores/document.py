"""Scores as JSON values: of one label, and of one label by the values of a feature. None where they are undefined.

And what they say of groups of scores beside their AUC: the calibration curve, its error, the lift of the highest ones.
The curve's bins hold equal weight, not equal ranges of scores: where clicks are rare, all scores are below 0.1.
"""

# N samples, B bins
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import Float64Array, ScoreGroups, exact_groups
from springtide.app.scores.samples import Arrays, LabelSamples, all_samples_of_label
from springtide.app.scores.segments import NO_VALUE, SegmentHistograms
from springtide.kernels.cpu.score_groups import bin_sums, top_sums

MAX_SHOWN = 20  # values of a feature; the others are one more


def label_scores(sums_Q: Float64Array, groups: ScoreGroups, *, curve: bool) -> dict[str, Any]:
    """Return the scores of a label from its sums (weight, loss, predicted, positive) and its samples by score."""
    weight, loss, predicted, positive = map(float, sums_Q)
    logloss, rate = (loss / weight, positive / weight) if weight > 0 else (None, None)
    entropy = normalized_entropy(logloss, rate)
    bins = calibration_curve(groups)
    scores = {
        "auc": groups.auc(),
        "logloss": logloss,
        "calibration": predicted / positive if positive > 0 else None,
        "label_rate": rate,
        "normalized_entropy": entropy,
        "information_gain": None if entropy is None else 1 - entropy,
        "calibration_error": calibration_error(bins),
        "top_decile_lift": top_decile_lift(groups),
    }
    return scores | ({"curve": [each._asdict() for each in bins]} if curve else {})


def value_scores(sums_Q: Float64Array) -> dict[str, Any]:
    """Return the scores of a label that is a value from its sums (weight, squared error, predicted, labels).

    What belongs to probabilities is None. `rmse` is of logarithms where the link is log1p.
    """
    weight, error, predicted, positive = map(float, sums_Q)
    return {
        "auc": None,
        "logloss": None,
        "calibration": predicted / positive if positive > 0 else None,
        "label_rate": positive / weight if weight > 0 else None,
        "rmse": (error / weight) ** 0.5 if weight > 0 else None,
    }


def segments_document(
    histograms: SegmentHistograms,
    window: Arrays,
    ids_N: npt.NDArray[np.int64],
    label: int,
    name_of: Callable[[int], str],
) -> list[dict[str, Any]]:
    """Return the scores of a feature's most frequent values, most frequent first, and of all others under None."""
    shown = histograms.most_frequent(MAX_SHOWN)
    each, known_N = all_samples_of_label(window, label)
    known_N &= ids_N != NO_VALUE
    each, ids_K = each.take(known_N), ids_N[known_N]
    is_other_K = np.ones(len(ids_K), np.bool_)
    found = []
    for segment in shown:
        is_value_K = ids_K == histograms.ids_S[segment]
        is_other_K &= ~is_value_K
        name = name_of(int(histograms.ids_S[segment]))
        whole = _segment_scores(histograms.groups(int(segment), label))
        found.append({"value": name, "whole": whole, "window": _segment_scores(_groups(each.take(is_value_K)))})
    rest = histograms.groups_of_rest(shown, label)
    others = {"value": None, "whole": _segment_scores(rest), "window": _segment_scores(_groups(each.take(is_other_K)))}
    return [*found, others] if is_other_K.any() or (rest.positive_G + rest.negative_G).any() else found


def _groups(each: LabelSamples) -> ScoreGroups:
    return exact_groups(each.scores_N, each.probabilities_N, each.positive_N, each.negative_N)


def _segment_scores(groups: ScoreGroups) -> dict[str, Any]:
    """Return AUC, label rate, calibration and weight of one segment."""
    weight_G = groups.positive_G + groups.negative_G
    positive, weight = float(groups.positive_G.sum()), float(weight_G.sum())
    predicted = float((groups.predicted_G * weight_G).sum())
    return {
        "auc": groups.auc(),
        "label_rate": positive / weight if weight > 0 else None,
        "calibration": predicted / positive if positive > 0 else None,
        "samples": weight,
    }


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
