"""Scored samples and what is said of them: AUC, logloss, normalized entropy, calibration, and how certain they are."""

# N samples, L labels
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import Float64Array, exact_auc
from springtide.app.scores.calibration_curve import normalized_entropy
from springtide.app.tools.evaluate.auc_error import standard_error


@dataclass(frozen=True)
class EvaluatedSamples:
    """Samples in the order of learning: the logits from before each was learned, and what happened."""

    logits_NL: npt.NDArray[np.float32]
    labels_NL: npt.NDArray[np.float32]  # 0..1; NaN = masked
    weights_N: npt.NDArray[np.float32]
    row_N: npt.NDArray[np.int64]  # of the files, counted from 0
    values: frozenset[int] = frozenset()  # places of the labels that are values: nothing is said of them by score

    def __len__(self) -> int:
        return len(self.weights_N)

    def where(self, chosen_N: npt.NDArray[np.generic] | slice) -> "EvaluatedSamples":
        """Return the samples that a mask, indices or a slice choose."""
        logits_NL, labels_NL, weights_N = self.logits_NL[chosen_N], self.labels_NL[chosen_N], self.weights_N[chosen_N]
        return EvaluatedSamples(logits_NL, labels_NL, weights_N, self.row_N[chosen_N], self.values)

    def of_label(self, label: int) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return scores, weights of the positive part and weights of the negative part; masked samples weigh 0."""
        labels_N = self.labels_NL[:, label].astype(np.float64)
        known_N = ~np.isnan(labels_N) & (label not in self.values)
        weights_N, labels_N = self.weights_N * known_N, np.where(known_N, labels_N, 0.0)
        # as ProgressiveScores does: an overflowed net has no opinion
        scores_N = np.nan_to_num(self.logits_NL[:, label].astype(np.float64), nan=0.0, posinf=700.0, neginf=-700.0)
        return scores_N, weights_N * labels_N, weights_N * (1 - labels_N)


@dataclass(frozen=True)
class Score:
    """Scores of samples; None where one is not defined, such as an AUC of one class."""

    samples: int
    auc: float | None
    auc_standard_error: float | None  # DeLong et al. 1988; takes the samples as independent
    logloss: float | None
    normalized_entropy: float | None
    calibration: float | None  # clicks predicted over clicks seen
    label_rate: float | None
    rmse: float | None = None  # of a label that is a value, such as a dwell time


def score_of(samples: EvaluatedSamples, *, label: int = 0) -> Score:
    """Return the scores of samples for one label."""
    scores_N, positive_N, negative_N = samples.of_label(label)
    positive, weight = float(positive_N.sum()), float(positive_N.sum() + negative_N.sum())
    logloss = float(losses(scores_N, positive_N, negative_N).sum()) / weight if weight > 0 else None
    predicted = float(((positive_N + negative_N) / (1 + np.exp(-scores_N))).sum())
    label_rate = positive / weight if weight > 0 else None
    auc = exact_auc(scores_N, positive_N, negative_N)
    return Score(
        samples=int(np.count_nonzero(~np.isnan(samples.labels_NL[:, label]))),
        auc=auc,
        auc_standard_error=None if auc is None else standard_error(scores_N, positive_N, negative_N),
        logloss=logloss,
        normalized_entropy=normalized_entropy(logloss, label_rate),
        calibration=predicted / positive if positive > 0 else None,
        label_rate=label_rate,
    )


def losses(scores_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> Float64Array:
    """Return each sample's weighted logloss."""
    found: Float64Array = positive_N * np.logaddexp(0.0, -scores_N) + negative_N * np.logaddexp(0.0, scores_N)
    return found
