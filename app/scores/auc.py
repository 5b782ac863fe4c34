"""The area under the ROC curve of any number of samples, from counts in narrow bins of the logit."""

# N samples, B bins
import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

MAX_LOGIT = 32.0  # logits beyond it share the outermost bins
BINS_PER_LOGIT = 8192
NUM_BINS = int(2 * MAX_LOGIT * BINS_PER_LOGIT)


class RocHistogram:
    """Weights of positives and negatives by logit. Within a bin, 1/8192 wide, order is lost: half of each pair counts.

    Adding is in order, one sample after another, so the result is bitwise the same however samples are cut into calls.
    """

    def __init__(self) -> None:
        self.positive_B = np.zeros(NUM_BINS)
        self.negative_B = np.zeros(NUM_BINS)
        self.first, self.last = NUM_BINS, -1  # bins in use

    def add(self, logits_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> None:
        """Samples by logit, with the weight of what is positive and what is negative in each."""
        if len(logits_N) == 0:
            return
        bins_N = np.clip((logits_N + MAX_LOGIT) * BINS_PER_LOGIT, 0, NUM_BINS - 1).astype(np.int64)
        np.add.at(self.positive_B, bins_N, positive_N)
        np.add.at(self.negative_B, bins_N, negative_N)
        self.first = min(self.first, int(bins_N.min()))
        self.last = max(self.last, int(bins_N.max()))

    def auc(self) -> float | None:
        """The chance that a positive stands above a negative; None while there is one class only."""
        used = slice(self.first, self.last + 1)
        return pair_auc(self.positive_B[used], self.negative_B[used])

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The bins in use."""
        used_U = np.flatnonzero((self.positive_B != 0) | (self.negative_B != 0))
        return {"bins": used_U, "positive": self.positive_B[used_U], "negative": self.negative_B[used_U]}

    def restore(self, bins_U: npt.NDArray[np.int64], positive_U: Float64Array, negative_U: Float64Array) -> None:
        """Takes what arrays() gave."""
        self.positive_B[bins_U], self.negative_B[bins_U] = positive_U, negative_U
        if len(bins_U):
            self.first, self.last = int(bins_U[0]), int(bins_U[-1])


def exact_auc(logits_N: Float64Array, positive_N: Float64Array, negative_N: Float64Array) -> float | None:
    """The same of few samples, exactly; equal logits count half."""
    if len(logits_N) == 0:
        return None
    order_N = np.argsort(logits_N)
    sorted_N = logits_N[order_N]
    starts_B = np.flatnonzero(np.concatenate([[True], sorted_N[1:] != sorted_N[:-1]]))
    positive_B = np.add.reduceat(positive_N[order_N], starts_B)
    return pair_auc(positive_B, np.add.reduceat(negative_N[order_N], starts_B))


def pair_auc(positive_B: Float64Array, negative_B: Float64Array) -> float | None:
    """From weights by ascending score; None where a class has no weight."""
    positives, negatives = float(positive_B.sum()), float(negative_B.sum())
    if positives <= 0 or negatives <= 0:
        return None
    # not products of BLAS: its other threads would spin for 20 ms after, on a core that the batch wants
    below = np.einsum("i,i->", positive_B, np.cumsum(negative_B), optimize=False)
    ties = np.einsum("i,i->", positive_B, negative_B, optimize=False)
    return float(below - 0.5 * ties) / (positives * negatives)
