"""What a step reports: the scores from before it learned, and its loss. On a device they arrive after the step."""

# N samples, L labels
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from app.training.device.transfer_stream import TransferStream
from app.training.step.dense_step import StepOutcome


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


def report_of(
    labels_NL: npt.NDArray[np.float32], weights_N: npt.NDArray[np.float32], values: OutcomeValues
) -> StepReport:
    """Return the report of a step that learned these samples."""
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
    )
