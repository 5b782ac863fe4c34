"""What samples count where negatives were sampled: in the loss of each label, in statistics, in scores.

A negative that was kept at the rate r stands for 1 / r of them. Among samples so kept the odds of the label whose
negatives they are are 1 / r times the true ones, so its loss is that of the logit less log(r), and the logit stays that
of all samples (King and Zeng 2001). Everything else counts a kept negative 1 / r times: other labels, running
statistics, progressive scores; and with `weights` that loss too.
"""

# N samples, L labels
from typing import NamedTuple

import numpy as np

from springtide.stream.columns import Batch
from springtide.stream.negatives import NegativeSampling
from springtide_client.array_types import Float32Array


class SampleWeights(NamedTuple):
    """Of a batch."""

    loss_NL: Float32Array  # by which a label's loss is multiplied
    counted_N: Float32Array  # for how many samples one stands
    offsets_NL: Float32Array  # added to a logit in its loss

    @staticmethod
    def of(batch: Batch, negatives: NegativeSampling | None) -> "SampleWeights | None":
        """Return those of a batch; None where every sample counts its weight."""
        if negatives is None or batch.rates_N is None:
            return None
        rates_N, labels_NL, label = batch.rates_N, batch.labels_NL, negatives.label
        counted_N = np.where(labels_NL[:, label] == 0, batch.weights_N / rates_N, batch.weights_N)
        loss_NL = np.repeat(counted_N[:, None], labels_NL.shape[1], axis=1)
        offsets_NL = np.zeros_like(loss_NL)
        if negatives.has_offset:
            loss_NL[:, label] = batch.weights_N
            offsets_NL[:, label] = -np.log(rates_N)
        return SampleWeights(loss_NL, counted_N, offsets_NL)

    def columns(self) -> dict[str, Float32Array]:
        """Return them as columns of a step."""
        return {"loss_weights": self.loss_NL, "counted": self.counted_N, "offsets": self.offsets_NL}
