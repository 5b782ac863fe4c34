"""The best AUC that anyone could reach on the recent clicks: that of the probability they were drawn from."""

import numpy as np
import numpy.typing as npt


class BestAucWindow:
    """A ring of the recent clicks and their true probabilities."""

    def __init__(self, window: int = 20_000) -> None:
        self._probability = np.zeros(window)
        self._click = np.zeros(window, dtype=bool)
        self._num = 0

    def observe(self, probability_N: npt.NDArray[np.float64], click_N: npt.NDArray[np.bool_]) -> None:
        """Add clicks to the window."""
        at_N = (self._num + np.arange(len(click_N))) % len(self._click)
        self._probability[at_N], self._click[at_N] = probability_N, click_N
        self._num += len(click_N)

    def value(self) -> float | None:
        """None while there is no click, or nothing but clicks."""
        num = min(self._num, len(self._click))
        return auc(self._probability[:num], self._click[:num])


def auc(scores_N: npt.NDArray[np.floating], labels_N: npt.NDArray[np.bool_]) -> float | None:
    """The chance that a click scores above a non-click, ties counting half; None with one class."""
    num_positive = int(labels_N.sum())
    num_negative = len(labels_N) - num_positive
    if not num_positive or not num_negative:
        return None
    _, inverse_N, counts = np.unique(scores_N, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    positive_ranks = float(ranks[inverse_N[labels_N]].sum())
    return (positive_ranks - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)
