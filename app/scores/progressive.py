"""Progressive scores: how well samples were predicted before they were learned, over the whole run and a window."""

# N samples, L labels, W samples of the window
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from app.scores.auc import Float64Array, RocHistogram, exact_auc

Arrays = dict[str, npt.NDArray[Any]]
SUMS = ("weight", "loss", "predicted", "positive")


class ProgressiveScores:
    """AUC (within 1e-4 of exact), logloss and calibration (clicks predicted over clicks seen) of each label.

    Labels between 0 and 1 count in part as positive and in part as negative; NaN is masked. A version holds the samples
    since the previous one (`delta`), a base holds `state`. A state and the deltas after it give the same bits as
    observing every sample.
    """

    def __init__(self, labels: Sequence[str], window_samples: int) -> None:
        self.labels, self.window_samples = tuple(labels), window_samples
        num_labels = len(self.labels)
        self._sums_LQ = np.zeros((num_labels, len(SUMS)))
        self._histograms = [RocHistogram() for _ in self.labels]
        self._window = _empty(num_labels)
        self._recent: list[Arrays] = []  # observed, not joined into the window yet
        self._num_recent = 0
        self._delta: list[Arrays] = []

    def observe(
        self,
        logits_NL: npt.NDArray[np.float32],
        labels_NL: npt.NDArray[np.float32],
        weights_N: npt.NDArray[np.float32],
    ) -> None:
        """Count scored samples; they belong to the next delta."""
        samples = {"logits": logits_NL, "labels": labels_NL, "weights": weights_N}
        self._count(samples)
        self._delta.append(samples)

    def delta(self) -> Arrays:
        """Return the samples observed since the last call; {} if there are none."""
        parts, self._delta = self._delta, []
        return _join(parts) if parts else {}

    def apply(self, delta: Mapping[str, npt.NDArray[Any]]) -> None:
        """Count the samples of another object's `delta`."""
        if delta:
            self._count({name: np.array(delta[name]) for name in ("logits", "labels", "weights")})

    def state(self) -> Arrays:
        """Return sums, histograms and window: everything but the list of samples for the next delta."""
        arrays = {f"window.{name}": array for name, array in self._join_window().items()}
        arrays["sums"] = self._sums_LQ.copy()
        for number, histogram in enumerate(self._histograms):
            arrays |= {f"histogram.{number}.{name}": array for name, array in histogram.arrays().items()}
        return arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace everything observed by what `state` returned; {}: nothing was observed."""
        num_labels = len(self.labels)
        self._sums_LQ = np.zeros((num_labels, len(SUMS)))
        self._histograms = [RocHistogram() for _ in self.labels]
        self._window, self._recent, self._num_recent, self._delta = _empty(num_labels), [], 0, []
        if not state:
            return
        self._sums_LQ = np.array(state["sums"])
        for number, histogram in enumerate(self._histograms):
            parts = (np.array(state[f"histogram.{number}.{name}"]) for name in ("bins", "positive", "negative"))
            histogram.restore(*parts)
        self._window = {name: np.array(state[f"window.{name}"]) for name in ("logits", "labels", "weights")}

    def window_losses(self, number: int) -> tuple[Float64Array, Float64Array]:
        """Return the losses of the window's samples for one label, oldest first, and their weights."""
        logits_N, weights_N, labels_N = _of_label(self._join_window(), number)
        return np.logaddexp(0.0, logits_N) - labels_N * logits_N, weights_N

    def non_finite_fraction(self, num: int) -> float:
        """Return the fraction of the window's newest `num` samples whose logits are not finite."""
        logits_NL = self._join_window()["logits"][-num:]
        return float(1 - np.isfinite(logits_NL).all(axis=1).mean()) if len(logits_NL) else 0.0

    def document(self) -> dict[str, Any]:
        """Return `{"whole": {...}, "window": {...}}`, and `tasks` by label if there are several."""
        window = self._join_window()
        tasks = {
            label: {"whole": self._whole(number), "window": _exact(window, number)}
            for number, label in enumerate(self.labels)
        }
        first = tasks[self.labels[0]]
        return {**first, "tasks": tasks} if len(self.labels) > 1 else dict(first)

    def _count(self, samples: Arrays) -> None:
        for number, histogram in enumerate(self._histograms):
            logits_N, weights_N, labels_N = _of_label(samples, number)
            histogram.add(logits_N, weights_N * labels_N, weights_N * (1 - labels_N))
            for quantity, terms_N in enumerate(_terms(logits_N, weights_N, labels_N)):
                self._sums_LQ[number, quantity] = _add_in_order(self._sums_LQ[number, quantity], terms_N)
        self._recent.append(samples)
        self._num_recent += len(samples["weights"])
        if self._num_recent > 2 * self.window_samples:
            self._join_window()

    def _join_window(self) -> Arrays:
        """Return the window's samples as one array each."""
        if self._recent:
            joined = _join([self._window, *self._recent])
            self._window = {name: array[-self.window_samples :].copy() for name, array in joined.items()}
            self._recent, self._num_recent = [], 0
        return self._window

    def _whole(self, number: int) -> dict[str, float | None]:
        return _scores(*(float(total) for total in self._sums_LQ[number]), auc=self._histograms[number].auc())


def _exact(samples: Arrays, number: int) -> dict[str, float | None]:
    logits_N, weights_N, labels_N = _of_label(samples, number)
    sums = (float(terms_N.sum()) for terms_N in _terms(logits_N, weights_N, labels_N))
    return _scores(*sums, auc=exact_auc(logits_N, weights_N * labels_N, weights_N * (1 - labels_N)))


def _scores(
    weight: float, loss: float, predicted: float, positive: float, *, auc: float | None
) -> dict[str, float | None]:
    return {
        "auc": auc,
        "logloss": loss / weight if weight > 0 else None,
        "calibration": predicted / positive if positive > 0 else None,
    }


def _of_label(samples: Arrays, number: int) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return logits, weights and labels of one label in double precision, without masked samples."""
    labels_N = samples["labels"][:, number].astype(np.float64)
    logits_N = samples["logits"][:, number].astype(np.float64)
    # an overflowed net has no opinion: NaN is scored as a coin flip
    logits_N = np.nan_to_num(logits_N, nan=0.0, posinf=700.0, neginf=-700.0)
    known_N = ~np.isnan(labels_N)
    return logits_N[known_N], samples["weights"].astype(np.float64)[known_N], labels_N[known_N]


def _terms(logits_N: Float64Array, weights_N: Float64Array, labels_N: Float64Array) -> tuple[Float64Array, ...]:
    """Return the terms of SUMS."""
    loss_N = np.logaddexp(0.0, logits_N) - labels_N * logits_N
    probabilities_N = 1.0 / (1.0 + np.exp(-logits_N))
    return weights_N, weights_N * loss_N, weights_N * probabilities_N, weights_N * labels_N


def _add_in_order(total: float, terms_N: Float64Array) -> float:
    """Add one term after another, so that the sum does not depend on how the terms are split into calls."""
    return float(np.cumsum(np.concatenate([[total], terms_N]))[-1])


def _join(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in ("logits", "labels", "weights")}


def _empty(num_labels: int) -> Arrays:
    return {
        "logits": np.zeros((0, num_labels), np.float32),
        "labels": np.zeros((0, num_labels), np.float32),
        "weights": np.zeros(0, np.float32),
    }
