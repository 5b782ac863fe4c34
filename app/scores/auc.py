"""The area under the ROC curve: exact for few samples, from a histogram of logits for any number of them."""

# N samples, B bins, G groups
import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.score_groups import pair_sums

Float64Array = npt.NDArray[np.float64]

MAX_LOGIT = 32.0  # logits beyond it share the outermost bins
BINS_PER_LOGIT = 8192
NUM_BINS = int(2 * MAX_LOGIT * BINS_PER_LOGIT)
HISTOGRAM_ARRAYS = "bins", "positive", "negative"  # of 8 bytes a bin in use


class RocHistogram:
    """Weights of positives and negatives in bins of the logit, 1/8192 wide; pairs within a bin count half.

    Samples are added one after another, so the result is equal bit by bit however they are split into calls.
    """

    def __init__(self) -> None:
        self.positive_B = np.zeros(NUM_BINS)
        self.negative_B = np.zeros(NUM_BINS)
        self.first, self.last = NUM_BINS, -1  # bins in use

    def add(self, logits_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> None:
        """Add samples, with the weight of the positive and the negative part of each."""
        if len(logits_N) == 0:
            return
        bins_N = np.clip((logits_N + MAX_LOGIT) * BINS_PER_LOGIT, 0, NUM_BINS - 1).astype(np.int64)
        np.add.at(self.positive_B, bins_N, positive_N)
        np.add.at(self.negative_B, bins_N, negative_N)
        self.first = min(self.first, int(bins_N.min()))
        self.last = max(self.last, int(bins_N.max()))

    def auc(self) -> float | None:
        """Return the AUC within 1e-4 of exact; None while there is only one class."""
        used = slice(self.first, self.last + 1)
        return pair_auc(self.positive_B[used], self.negative_B[used])

    def groups(self) -> "ScoreGroups":
        """Return the bins in use as groups of one probability each, that of the bin's middle: within 6e-5 of exact."""
        used = slice(self.first, self.last + 1)
        return ScoreGroups(_bin_probabilities()[used], self.positive_B[used], self.negative_B[used])

    @property
    def num_used(self) -> int:
        """The number of bins with weight."""
        used = slice(self.first, self.last + 1)
        return int(np.count_nonzero(self.positive_B[used] + self.negative_B[used]))

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the bins in use."""
        used_U = np.flatnonzero((self.positive_B != 0) | (self.negative_B != 0))
        return dict(zip(HISTOGRAM_ARRAYS, (used_U, self.positive_B[used_U], self.negative_B[used_U]), strict=True))

    def restore(self, bins_U: npt.NDArray[np.int64], positive_U: Float64Array, negative_U: Float64Array) -> None:
        """Set the bins that `arrays` returned, in an empty histogram."""
        self.positive_B[bins_U], self.negative_B[bins_U] = positive_U, negative_U
        if len(bins_U):
            self.first, self.last = int(bins_U[0]), int(bins_U[-1])


class ScoreGroups(NamedTuple):
    """The weights of positives and negatives by predicted probability, in ascending order."""

    predicted_G: Float64Array
    positive_G: Float64Array
    negative_G: Float64Array

    def auc(self) -> float | None:
        """Return the AUC; equal scores count half. None with only one class."""
        return pair_auc(self.positive_G, self.negative_G)


def exact_groups(
    scores_N: Float64Array, predicted_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array
) -> ScoreGroups:
    """Return one group for each score; equal scores have one `predicted`."""
    if len(scores_N) == 0:
        return ScoreGroups(predicted_N, positive_N, negative_N)
    order_N = np.argsort(scores_N)
    sorted_N = scores_N[order_N]
    is_new_N = sorted_N[1:] != sorted_N[:-1]
    if is_new_N.all():
        return ScoreGroups(predicted_N[order_N], positive_N[order_N], negative_N[order_N])
    starts_G = np.flatnonzero(np.concatenate([[True], is_new_N]))
    positive_G = np.add.reduceat(positive_N[order_N], starts_G)
    negative_G = np.add.reduceat(negative_N[order_N], starts_G)
    return ScoreGroups(predicted_N[order_N][starts_G], positive_G, negative_G)


def exact_auc(scores_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> float | None:
    """Return the AUC of weighted samples; equal scores count half. None with only one class."""
    return exact_groups(scores_N, scores_N, positive_N, negative_N).auc()


def click_auc(scores_N: npt.NDArray[np.floating], clicked_N: npt.NDArray[np.bool_]) -> float | None:
    """Return the exact AUC of clicks and non-clicks of equal weight; None with only one class."""
    return exact_auc(scores_N.astype(np.float64), clicked_N.astype(np.float64), (~clicked_N).astype(np.float64))


def pair_auc(positive_B: Float64Array, negative_B: Float64Array) -> float | None:
    """Return the AUC from the weights at each score, in ascending order; None if a class has no weight."""
    positives, negatives, pairs = pair_sums(positive_B, negative_B)
    return float(pairs / (positives * negatives)) if positives > 0 and negatives > 0 else None


@functools.cache
def _bin_probabilities() -> Float64Array:
    """Return the probability in the middle of each bin of a RocHistogram."""
    logits_B = (np.arange(NUM_BINS) + 0.5) / BINS_PER_LOGIT - MAX_LOGIT
    return np.asarray(1.0 / (1.0 + np.exp(-logits_B)))
