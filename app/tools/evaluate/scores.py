"""Scores of the samples of an evaluation, of all and by the values of a field, with the standard errors of AUCs.

Errors of an AUC and of the difference of two AUCs of the same samples are by DeLong et al. 1988, which takes the
samples as independent, or by clusters (Obuchowski 1997); computed by ranks, in n log n, as Sun and Xu 2014 do. Samples
may have weights.
"""

# N samples, L labels, S segments
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import Float64Array, exact_auc
from springtide.app.scores.document import normalized_entropy
from springtide_client.keys import MISSING_ID


def standard_error(scores_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> float | None:
    """Return the standard error of an AUC from each sample's weight as a positive and as a negative.

    None with fewer than two samples of a class.
    """
    return _error(placements(scores_N, positive_N, negative_N), positive_N, negative_N)


def difference_error(
    scores_N: Float64Array,
    others_N: Float64Array,
    positive_N: Float64Array,
    negative_N: Float64Array,
    cluster_N: npt.NDArray[Any] | None = None,
) -> float | None:
    """Return the standard error of the AUC of `scores_N` minus that of `others_N`, for the same samples.

    `cluster_N`: samples of one cluster depend on each other (Obuchowski 1997); None: all are independent.
    """
    first = placements(scores_N, positive_N, negative_N)
    second = placements(others_N, positive_N, negative_N)
    gained = first[0] - second[0], first[1] - second[1]
    if cluster_N is None:
        return _error(gained, positive_N, negative_N)
    terms_N = np.zeros(len(scores_N))
    for values_N, weights_N in zip(gained, (positive_N, negative_N), strict=True):
        if (total := float(weights_N.sum())) == 0:
            return None
        terms_N += weights_N / total * (values_N - float((weights_N * values_N).sum()) / total)
    return clustered_error(terms_N, cluster_N)


def clustered_error(terms_N: Float64Array, cluster_N: npt.NDArray[Any]) -> float | None:
    """Return the standard error of a sum whose terms are independent between clusters; None with fewer than two."""
    _, at_N = np.unique(cluster_N, return_inverse=True)
    sums_C = np.bincount(at_N, terms_N)
    num = len(sums_C)
    return math.sqrt(float(np.square(sums_C).sum()) * num / (num - 1)) if num > 1 else None


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


@dataclass(frozen=True)
class EvaluatedSamples:
    """Samples in the order of learning: the logits from before each was learned, and what happened."""

    logits_NL: npt.NDArray[np.float32]
    labels_NL: npt.NDArray[np.float32]  # 0..1; NaN = masked
    weights_N: npt.NDArray[np.float32]
    row_N: npt.NDArray[np.int64]  # of the files, counted from 0
    values: frozenset[int] = frozenset()  # places of the labels that are values: nothing is said of them by score
    # by what they are grouped for ranking metrics, if they are: columns by name, as `RankingPlan.take` returns them
    groups: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.weights_N)

    @property
    def users_N(self) -> npt.NDArray[np.int64] | None:
        """The user of each sample; one that is missing is another one each time. None: no field names users."""
        users_N = self.groups.get("ranking.group")
        return None if users_N is None else np.where(users_N == MISSING_ID, np.arange(len(users_N)), users_N)

    def where(self, chosen_N: npt.NDArray[np.generic] | slice) -> "EvaluatedSamples":
        """Return the samples that a mask, indices or a slice choose."""
        logits_NL, labels_NL, weights_N = self.logits_NL[chosen_N], self.labels_NL[chosen_N], self.weights_N[chosen_N]
        groups = {name: array_N[chosen_N] for name, array_N in self.groups.items()}
        return EvaluatedSamples(logits_NL, labels_NL, weights_N, self.row_N[chosen_N], self.values, groups)

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


MAX_SEGMENTS = 20
MISSING = "(missing)"


class SegmentField:
    """Reads one field of each message; it need not be a field of the schema."""

    def __init__(self, name: str) -> None:
        self.name = name
        row_type = msgspec.defstruct("Row", [("value", Any, msgspec.field(name=name, default=None))])
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(row_type)
        self._code_of: dict[str, int] = {}
        self._codes: list[npt.NDArray[np.int64]] = []

    def add(self, messages: Sequence[bytes]) -> None:
        """Note the segments of samples, whose messages are valid JSON objects."""
        code_of = self._code_of
        texts = [segment_text(self._decoder.decode(message).value) for message in messages]
        self._codes.append(np.array([code_of.setdefault(text, len(code_of)) for text in texts], np.int64))

    def scores(self, samples: EvaluatedSamples, *, label: int = 0) -> list[tuple[str, Score]]:
        """Return the scores of the most frequent segments, at most MAX_SEGMENTS, then those of all "others"."""
        codes_N = np.concatenate(self._codes)[: len(samples)] if self._codes else np.zeros(0, np.int64)
        texts = list(self._code_of)
        counts_S = np.bincount(codes_N, minlength=len(texts))
        order_S = np.lexsort((np.arange(len(texts)), -counts_S))
        shown = [code for code in order_S[:MAX_SEGMENTS].tolist() if counts_S[code]]
        found = [(texts[code], score_of(samples.where(codes_N == code), label=label)) for code in shown]
        others_N = ~np.isin(codes_N, shown)
        num_others = int(np.count_nonzero(counts_S)) - len(shown)
        if num_others:
            found.append((f"others ({num_others:,})", score_of(samples.where(others_N), label=label)))
        return found


def segment_text(value: Any) -> str:
    """Return a field's value as text; `7` and `"7"` are one segment, as they are one id."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
