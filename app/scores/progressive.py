"""Progressive scores: how well samples were predicted before they were learned, over the whole run and a window."""

# N samples, L labels, W samples of the window
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from app.scores.auc import Float64Array, RocHistogram, exact_auc

Arrays = dict[str, npt.NDArray[Any]]
SAMPLES = ("logits", "labels", "weights")
# computed once from each sample of the window, in double precision: versions need their sums again and again
TERMS = ("scores", "losses", "probabilities")
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
        samples = dict(zip(SAMPLES, (logits_NL, labels_NL, weights_N), strict=True))
        self._count(samples)
        self._delta.append(samples)

    def delta(self) -> Arrays:
        """Return the samples observed since the last call; {} if there are none."""
        parts, self._delta = self._delta, []
        return _join(parts, SAMPLES) if parts else {}

    def apply(self, delta: Mapping[str, npt.NDArray[Any]]) -> None:
        """Count the samples of another object's `delta`."""
        if delta:
            self._count({name: np.array(delta[name]) for name in SAMPLES})

    def state(self) -> Arrays:
        """Return sums, histograms and window: everything but the list of samples for the next delta."""
        window = self._join_window()
        arrays = {f"window.{name}": window[name] for name in SAMPLES}
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
        self._window = _with_terms({name: np.array(state[f"window.{name}"]) for name in SAMPLES})

    def window_losses(self, number: int) -> tuple[Float64Array, Float64Array]:
        """Return the losses of the window's samples for one label, oldest first, and their weights."""
        of_label = _of_label(self._join_window(), number)
        return of_label.losses_N, of_label.weights_N

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
        samples = _with_terms(samples)
        for number, histogram in enumerate(self._histograms):
            each = _of_label(samples, number)
            histogram.add(each.scores_N, each.weights_N * each.labels_N, each.weights_N * (1 - each.labels_N))
            for quantity, terms_N in enumerate(_summed_terms(each)):
                self._sums_LQ[number, quantity] = _add_in_order(self._sums_LQ[number, quantity], terms_N)
        self._recent.append(samples)
        self._num_recent += len(samples["weights"])
        if self._num_recent > 2 * self.window_samples:
            self._join_window()

    def _join_window(self) -> Arrays:
        """Return the window's samples as one array each."""
        if self._recent:
            joined = _join([self._window, *self._recent], (*SAMPLES, *TERMS))
            self._window = {name: array[-self.window_samples :].copy() for name, array in joined.items()}
            self._recent, self._num_recent = [], 0
        return self._window

    def _whole(self, number: int) -> dict[str, float | None]:
        return _scores(*(float(total) for total in self._sums_LQ[number]), auc=self._histograms[number].auc())


class _OfLabel(NamedTuple):
    """Samples with a value for one label, in double precision; their scores are finite."""

    scores_N: Float64Array
    weights_N: Float64Array
    labels_N: Float64Array
    losses_N: Float64Array
    probabilities_N: Float64Array


def _exact(samples: Arrays, number: int) -> dict[str, float | None]:
    each = _of_label(samples, number)
    sums = (float(terms_N.sum()) for terms_N in _summed_terms(each))
    auc = exact_auc(each.scores_N, each.weights_N * each.labels_N, each.weights_N * (1 - each.labels_N))
    return _scores(*sums, auc=auc)


def _scores(
    weight: float, loss: float, predicted: float, positive: float, *, auc: float | None
) -> dict[str, float | None]:
    return {
        "auc": auc,
        "logloss": loss / weight if weight > 0 else None,
        "calibration": predicted / positive if positive > 0 else None,
    }


def _with_terms(samples: Arrays) -> Arrays:
    """Return the samples with TERMS."""
    # an overflowed net has no opinion: NaN is scored as a coin flip
    scores_NL = np.nan_to_num(samples["logits"].astype(np.float64), nan=0.0, posinf=700.0, neginf=-700.0)
    losses_NL = np.logaddexp(0.0, scores_NL) - samples["labels"].astype(np.float64) * scores_NL
    terms = (scores_NL, losses_NL, 1.0 / (1.0 + np.exp(-scores_NL)))
    return samples | dict(zip(TERMS, terms, strict=True))


def _of_label(samples: Arrays, number: int) -> _OfLabel:
    """Return the samples that are not masked for one label."""
    labels_N = samples["labels"][:, number].astype(np.float64)
    scores_N, losses_N, probabilities_N = (samples[name][:, number] for name in TERMS)
    found = _OfLabel(scores_N, samples["weights"].astype(np.float64), labels_N, losses_N, probabilities_N)
    known_N = ~np.isnan(labels_N)
    return found if known_N.all() else _OfLabel(*(array_N[known_N] for array_N in found))


def _summed_terms(each: _OfLabel) -> tuple[Float64Array, ...]:
    """Return the terms of SUMS."""
    weights_N = each.weights_N
    return weights_N, weights_N * each.losses_N, weights_N * each.probabilities_N, weights_N * each.labels_N


def _add_in_order(total: float, terms_N: Float64Array) -> float:
    """Add one term after another, so that the sum does not depend on how the terms are split into calls."""
    return float(np.cumsum(np.concatenate([[total], terms_N]))[-1])


def _join(parts: Sequence[Arrays], names: Sequence[str]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _empty(num_labels: int) -> Arrays:
    none_NL = np.zeros((0, num_labels), np.float32)
    return _with_terms({"logits": none_NL, "labels": none_NL, "weights": np.zeros(0, np.float32)})
