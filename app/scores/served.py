"""Scores of what was served: of the score that an impression has in a field, by the label that its events made.

It was made before the label was known, whatever the window. Small enough for every version's meta.
"""

# N samples, B bins
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

NUM_BINS, MAX_LOGIT = 256, 12.8  # the AUC is found from a tenth of a logit: within 0.001 of the exact one
EDGE = 1e-6  # a score of 0 or 1 counts as one so close to it


class ServedScores(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over impressions with a served score."""

    num: int = 0
    weight: float = 0.0
    loss: float = 0.0
    predicted: float = 0.0
    positive: float = 0.0
    bins: dict[str, tuple[float, float]] = {}  # by tenth of a logit: the weight of negatives and positives

    def observe(
        self, scores_N: npt.NDArray[Any], labels_N: npt.NDArray[Any], weights_N: npt.NDArray[Any]
    ) -> "ServedScores":
        """Count impressions; NaN is no score, or a masked label."""
        known = np.flatnonzero(~(np.isnan(scores_N) | np.isnan(labels_N)) & (weights_N > 0))
        if not len(known):
            return self
        p_N = np.clip(scores_N[known].astype(np.float64), EDGE, 1 - EDGE)
        y_N, w_N = labels_N[known].astype(np.float64), weights_N[known].astype(np.float64)
        place_N = np.floor((np.log(p_N / (1 - p_N)) + MAX_LOGIT) * NUM_BINS / (2 * MAX_LOGIT)).clip(0, NUM_BINS - 1)
        bins = dict(self.bins)
        for place in np.unique(place_N).tolist():
            here, name = place_N == place, str(int(place))
            negative, positive = bins.get(name, (0.0, 0.0))
            bins[name] = (
                negative + float((w_N * (1 - y_N))[here].sum()),
                positive + float((w_N * y_N)[here].sum()),
            )
        return ServedScores(
            self.num + len(known),
            self.weight + float(w_N.sum()),
            self.loss - float((w_N * (y_N * np.log(p_N) + (1 - y_N) * np.log1p(-p_N))).sum()),
            self.predicted + float((w_N * p_N).sum()),
            self.positive + float((w_N * y_N).sum()),
            bins,
        )

    def plus(self, other: "ServedScores") -> "ServedScores":
        """Return the scores of both together."""
        bins = dict(self.bins)
        for place, (negative, positive) in other.bins.items():
            before = bins.get(place, (0.0, 0.0))
            bins[place] = before[0] + negative, before[1] + positive
        return ServedScores(
            self.num + other.num,
            self.weight + other.weight,
            self.loss + other.loss,
            self.predicted + other.predicted,
            self.positive + other.positive,
            bins,
        )

    def document(self) -> dict[str, float | None]:
        """Return AUC, logloss and calibration; None where they are undefined."""
        found_B2 = np.array([self.bins[name] for name in sorted(self.bins, key=int)]).reshape(-1, 2)
        below_B = np.concatenate([[0.0], np.cumsum(found_B2[:, 0])[:-1]])
        pairs = float(found_B2[:, 0].sum() * found_B2[:, 1].sum())
        right = float((found_B2[:, 1] * (below_B + 0.5 * found_B2[:, 0])).sum()) if len(found_B2) else 0.0
        return {
            "auc": right / pairs if pairs > 0 else None,
            "logloss": self.loss / self.weight if self.weight > 0 else None,
            "calibration": self.predicted / self.positive if self.positive > 0 else None,
        }
