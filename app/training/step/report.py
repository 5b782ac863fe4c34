"""Report of a step: the scores from before it learned, and its loss. On a device they arrive after the step."""

# N samples, L labels
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.training.device.transfer_stream import TransferStream
from springtide.app.training.step.global_batch import Samples
from springtide.app.training.step.learning_step import StepOutcome
from springtide.stream.columns import Batch


@dataclass(frozen=True)
class StepReport:
    """Logits from before the step learned, and the batch's labels, NaN where masked."""

    logits_NL: npt.NDArray[np.float32]
    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    loss: float = float("nan")  # the mean over weights; NaN if nothing has weight
    skipped: bool = False  # the dense net was not updated, because gradients were not finite
    gradient_norm: float = float("nan")  # of the dense net's mean gradient, before clipping
    clipped: bool = False  # gradients of the dense net were clipped
    num_before: int = 0  # samples of other ranks that come before this rank's own


class OutcomeValues(NamedTuple):
    """A StepOutcome on the host."""

    logits_NL: npt.NDArray[np.float32]
    loss: float
    weight: float
    skipped: float
    gradient_norm: float
    clipped: float


def fetch_outcome(outcome: StepOutcome, transfer: TransferStream | None) -> Callable[[], OutcomeValues]:
    """Start to copy an outcome to the host; the returned call waits for the copy."""
    if transfer is None:
        values = OutcomeValues(outcome.logits_NL.numpy(), *map(float, outcome[1:]))
        return lambda: values
    fetch, shape = transfer.fetch_async(torch.cat([part.reshape(-1).float() for part in outcome])), outcome[0].shape

    def wait() -> OutcomeValues:
        numbers, num_logits = fetch(), shape.numel()
        return OutcomeValues(numbers[:num_logits].reshape(tuple(shape)), *map(float, numbers[num_logits:]))

    return wait


def fetch_samples(
    batch: Batch, samples: Samples | None, transfer: TransferStream | None
) -> Callable[[], tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
    """Start to copy the labels and weights of all ranks' samples to the host; the returned call waits for the copy.

    `samples`: None if there are none but the batch's.
    """
    if samples is None or transfer is None:
        columns = batch.labels_NL, batch.weights_N
        if samples is not None:
            columns = samples.labels_NL.numpy(), samples.weights_N.numpy()
        return lambda: columns
    fetch = transfer.fetch_async(torch.cat([samples.labels_NL, samples.weights_N[:, None]], dim=1))

    def wait() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        numbers_NL1 = fetch()
        return numbers_NL1[:, :-1].copy(), numbers_NL1[:, -1].copy()

    return wait


def report_of(
    labels_NL: npt.NDArray[np.float32],
    weights_N: npt.NDArray[np.float32],
    values: OutcomeValues,
    num_before: int = 0,
) -> StepReport:
    """Return the report of a step that learned these samples, of which the first `num_before` are other ranks'."""
    has_weight = values.weight > 0
    loss = values.loss / values.weight if has_weight else float("nan")
    return StepReport(
        values.logits_NL,
        labels_NL,
        weights_N,
        loss,
        bool(values.skipped),
        gradient_norm=values.gradient_norm / values.weight if has_weight else float("nan"),
        clipped=bool(values.clipped),
        num_before=num_before,
    )
