"""The learning step of a net: zero, score, gradients, sums of all ranks, statistics, update; of any objective.

On a device nothing is read back, so that it may lag behind, or a CUDA graph capture the step.
"""

# N samples, L labels, G fields that group samples, O of an output of a tower
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from springtide.app.models.interface import DenseModel
from springtide.app.models.losses.loss import Loss
from springtide.app.models.retrieval.two_tower import Frequencies, TwoTower
from springtide.app.training.device import TransferStream
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.global_batch import LocalBatch, Samples
from springtide.stream.columns import Batch
from springtide_client.model.inputs import ModelInputs

Float32Array = npt.NDArray[np.float32]
# scores and learns a batch given the net's logits, float32 (N, L): returns logits, and the derivatives of their
# logistic loss by the net's
OffsetStep = Callable[[Float32Array], tuple[Float32Array, Float32Array]]


class StepColumns(NamedTuple):
    """A batch's tensors, where the net is."""

    inputs: ModelInputs
    labels_NL: Tensor
    weights_N: Tensor
    groups_NG: Tensor | None = None  # `Loss.groups_of`, for losses that rank a sample against others of its group
    item_ids_N: Tensor | None = None  # int64, for two towers


class Scores(NamedTuple):
    """Logits from before a step, and the sums of loss and weight."""

    logits_NL: Tensor
    loss: Tensor
    weight: Tensor

    @staticmethod
    def of_none(columns: StepColumns) -> "Scores":
        """Return those of a rank that has no samples in this step."""
        return Scores(columns.labels_NL, columns.labels_NL.sum(), columns.weights_N.sum())


class StepOutcome(NamedTuple):
    """Results, on the device of the step: logits from before it learned, sums over the samples of loss and weight."""

    logits_NL: Tensor
    loss: Tensor
    weight: Tensor
    skipped: Tensor  # True if the net was not updated, because gradients were not finite
    gradient_norm: Tensor  # of the dense net
    clipped: Tensor  # True if gradients were clipped


class LossObjective:
    """The loss of every label. A rank may have no samples."""

    def __init__(self, model: nn.Module, loss: Loss | None = None, net: nn.Module | None = None) -> None:
        """`net` is called in the model's place, for example its compiled form."""
        self.model, self.loss, self.net = model, loss or Loss((), model), model if net is None else net

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        """Score, and leave gradients in the net and in the row inputs."""
        inputs, labels_NL, weights_N, groups_NG, _ = columns
        if not len(labels_NL):
            return Scores.of_none(columns)
        logits_NL = score(self.net, inputs, bfloat16=bfloat16)
        loss, weight = self.loss(logits_NL, labels_NL, weights_N, groups_NG)
        loss.backward()  # type: ignore[no-untyped-call]
        return Scores(logits_NL, loss, weight)

    def observe(self, samples: Samples) -> None:
        """Count samples in the model's statistics: after they were scored, for a server has not seen them either."""
        if isinstance(self.model, DenseModel):
            self.model.observe_inputs(samples.dense_NF)
            self.model.observe_labels(samples.logits_NL, samples.labels_NL, samples.weights_N)


class OffsetObjective(LossObjective):
    """The loss of a final score, of which the wide part, learned between forward and backward pass, is a constant part.

    The wide part learns the logistic loss of every label from 0 to 1, whatever the `loss` is.
    """

    def __init__(self, model: nn.Module, loss: Loss, step: OffsetStep) -> None:
        """`step`: of one batch. Of many ranks all call it, with samples or without."""
        super().__init__(model, loss)
        self.step = step

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        inputs, labels_NL, weights_N, groups_NG, _ = columns
        has_samples = len(labels_NL) > 0
        net_NL = score(self.net, inputs, bfloat16=bfloat16) if has_samples else torch.zeros_like(labels_NL)
        logits, errors = self.step(np.ascontiguousarray(net_NL.detach().numpy()))
        if not has_samples:
            return Scores.of_none(columns)
        logits_NL, errors_NL = torch.from_numpy(logits), torch.from_numpy(errors)
        gradient = self.loss.gradient(logits_NL, labels_NL, weights_N, errors_NL, groups_NG)
        net_NL.backward(gradient.errors_NL)  # type: ignore[no-untyped-call]
        return Scores(logits_NL, gradient.loss, gradient.weight)


class TwoTowerObjective(LossObjective):
    """Scores of the samples' own items, and a loss over the items of the batch, of many ranks of this rank's batch."""

    def __init__(self, model: TwoTower, batch: LocalBatch) -> None:
        super().__init__(model)
        self.towers, self.batch = model, batch
        self._frequencies: Frequencies | None = None  # of the newest step

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        inputs, labels_NL, weights_N, _, ids_N = columns
        assert ids_N is not None
        model = self.towers
        frequencies = self._frequencies = model.frequency.after(self.batch.all_gather(ids_N))
        if not len(ids_N):
            return Scores.of_none(columns)
        with torch.autocast(inputs.dense.device.type, torch.bfloat16, enabled=bfloat16):
            users_NO, items_NO = model.vectors(*inputs)
        with torch.no_grad():
            logits_NL = model.logits(users_NO, items_NO)
        loss, weight = model.in_batch_loss(users_NO, items_NO, ids_N, frequencies, labels_NL, weights_N)
        loss.backward()  # type: ignore[no-untyped-call]
        return Scores(logits_NL, loss, weight)

    def observe(self, samples: Samples) -> None:
        super().observe(samples)
        assert self._frequencies is not None
        self.towers.frequency.observe(self._frequencies)


class Step(Protocol):
    """A LearningStep, or one that replays it as a CUDA graph."""

    def __call__(self, objective: LossObjective, columns: StepColumns, *, bfloat16: bool) -> StepOutcome:
        """Learn from a batch; gradients flow back through the inputs to the rows."""
        ...


class LearningStep:
    """Learns any objective. A step whose gradients are not finite updates nothing of the net."""

    def __init__(self, model: nn.Module, update: NetUpdate, batch: LocalBatch | None = None) -> None:
        """`batch`: of many ranks the GlobalBatch; such a step cannot be captured."""
        self.model, self.update, self.batch = model, update, batch or LocalBatch(update)

    def __call__(self, objective: LossObjective, columns: StepColumns, *, bfloat16: bool) -> StepOutcome:
        self.update.zero_grad()
        logits_NL, loss, weight = objective.learn(columns, bfloat16=bfloat16)
        samples = Samples(columns.inputs.dense, columns.labels_NL, columns.weights_N, logits_NL.detach())
        samples, loss, weight, norm = self.batch.reduce(samples, loss.detach(), weight)
        norm = norm.to(loss.device)
        skipped = ~torch.isfinite(norm)
        # one overflow would stay in the net for ever; the table rejects such gradients row by row
        if self.update.on_device:
            # other nets have no statistics
            buffers = list(self.model.buffers()) if isinstance(self.model, DenseModel) else []
            before = [buffer.clone() for buffer in buffers]
            objective.observe(samples)
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
        elif not skipped:
            objective.observe(samples)
        applied = self.update.apply(weight, norm, skipped)
        return StepOutcome(samples.logits_NL, loss, weight, skipped, *applied)


def score(net: nn.Module, inputs: ModelInputs, *, bfloat16: bool) -> Tensor:
    """Return float32 logits."""
    with torch.autocast(inputs.dense.device.type, torch.bfloat16, enabled=bfloat16):
        logits_NL: Tensor = net(*inputs)
    return logits_NL.float()


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
