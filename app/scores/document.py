"""Scores as JSON values: of one label, and of one label by the values of a feature. None where they are undefined."""

# N samples
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import Float64Array, ScoreGroups, exact_groups
from springtide.app.scores.calibration_curve import (
    calibration_curve,
    calibration_error,
    normalized_entropy,
    top_decile_lift,
)
from springtide.app.scores.samples import Arrays, LabelSamples, all_samples_of_label
from springtide.app.scores.segments import NO_VALUE, SegmentHistograms

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
