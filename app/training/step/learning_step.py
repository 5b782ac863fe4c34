"""The learning step of a net: zero, score, gradients, sums of all ranks, statistics, update; of any objective.

On a device nothing is read back, so that it may lag behind, or a CUDA graph capture the step.
"""

# N samples, F dense features, L labels, G fields that group samples, O of an output of a tower
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import label_weights
from springtide.app.models.compiled_net import CompiledNet
from springtide.app.models.interface import DenseModel
from springtide.app.models.losses.loss import Loss
from springtide.app.models.retrieval.two_tower import Frequencies, TwoTower
from springtide.app.models.wide_part import wide_part_of
from springtide.app.training.device import TransferStream
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.wide_step import OffsetStep
from springtide.stream.columns import Batch
from springtide_client.model.inputs import ModelInputs


class StepColumns(NamedTuple):
    """A batch's tensors, where the net is."""

    inputs: ModelInputs
    labels_NL: Tensor
    weights_N: Tensor
    groups_NG: Tensor | None = None  # `Loss.groups_of`, for losses that rank a sample against others of its group
    item_ids_N: Tensor | None = None  # int64, for two towers
    offset_step: OffsetStep | None = None  # of the wide part, if there is one
    # where negatives are sampled: see SampleWeights
    loss_weights_NL: Tensor | None = None
    offsets_NL: Tensor | None = None
    counted_N: Tensor | None = None
    shares_NL: Tensor | None = None  # F of labels whose events may come late, NaN of others: `Loss.late_factors`

    def shifted(self, logits_NL: Tensor) -> Tensor:
        """Return the logits that the loss is of."""
        return logits_NL if self.offsets_NL is None else logits_NL + self.offsets_NL

    def loss_weights(self, late_NL: Tensor | None) -> Tensor:
        """By what losses are multiplied, (N), or (N, L) where labels differ. `late_NL`: see `Loss.late_factors`."""
        weights = self.weights_N if self.loss_weights_NL is None else self.loss_weights_NL
        return weights if late_NL is None else label_weights(weights) * late_NL


class StepDecision(NamedTuple):
    """The decision before a step that follows from the batches of all ranks."""

    num_samples: int  # of all ranks
    num_scored: int = 0  # of them, those that are first ones of their labels
    num_scored_before: int = 0  # of those, the ones of the ranks before this one
    has_grades: bool = False  # samples of some rank may correct what was learned
    are_prepared: bool = False  # every rank has the keys of this batch already
    prefetch: bool = False  # a rank knows its next batch


class Samples(NamedTuple):
    """Columns of the samples of all ranks, in the order of ranks."""

    dense_NF: Tensor
    labels_NL: Tensor
    weights_N: Tensor  # a negative that was kept counts for those that were not
    logits_NL: Tensor
    late_NL: Tensor | None = None  # factors of weights, of labels whose events may come late


class Scores(NamedTuple):
    """Logits from before a step, and the sums of loss and weight."""

    logits_NL: Tensor
    loss: Tensor
    weight: Tensor
    norm: Tensor | None = None  # of the net's gradients, if it is known already
    late_NL: Tensor | None = None  # factors of weights, of labels whose events may come late

    @staticmethod
    def of_none(columns: StepColumns) -> "Scores":
        """Return those of a rank that has no samples in this step."""
        return Scores(columns.labels_NL, columns.labels_NL.sum(), columns.weights_N.sum())


class Gradients(NamedTuple):
    """Gradients that a backward pass leaves; of many ranks, the samples and sums of all."""

    samples: Samples
    loss: Tensor
    weight: Tensor
    norm: Tensor  # of the dense net's gradients


class LocalBatch:
    """The batch of a process that learns alone, and the interface of a GlobalBatch."""

    def __init__(self, update: NetUpdate) -> None:
        """`update`: of the net."""
        self.update = update

    def vote(self, batch: Batch, step: int, *, is_prepared: bool, knows_next: bool) -> StepDecision:
        """Tell the others what this rank has for a step; hear what follows for all."""
        return StepDecision(len(batch), batch.num_scored, 0, batch.grade_N is not None, is_prepared, knows_next)

    def all_gather(self, rows_NX: Tensor) -> Tensor:
        """Return the rows of all ranks' samples, from this rank's."""
        return rows_NX

    def reduce(self, samples: Samples, scores: Scores) -> Gradients:
        """After the backward pass: join the samples of all ranks, and add up their sums and gradients."""
        norm = self.update.gradient_norm() if scores.norm is None else scores.norm
        return Gradients(samples, scores.loss.detach(), scores.weight, norm)

    def require_same(self, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """ShardError unless every rank has the same bits in these."""


class StepOutcome(NamedTuple):
    """Results of all ranks, on the device of the step: logits from before it learned, sums of loss and weight."""

    logits_NL: Tensor
    labels_NL: Tensor
    weights_N: Tensor
    loss: Tensor
    weight: Tensor
    skipped: Tensor | bool  # True if the net was not updated, because gradients were not finite
    gradient_norm: Tensor  # of the dense net
    clipped: Tensor | bool  # True if gradients were clipped


class LossObjective:
    """The loss of every label. A rank may have no samples."""

    def __init__(self, model: nn.Module, loss: Loss | None = None, net: nn.Module | None = None) -> None:
        """`net` is called in the model's place, for example its compiled form."""
        self.model, self.loss, self.net = model, loss or Loss((), model), model if net is None else net

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        """Score, and leave gradients in the net and in the row inputs."""
        if not len(columns.labels_NL):
            return Scores.of_none(columns)
        logits_NL = score(self.net, columns.inputs, bfloat16=bfloat16)
        late_NL = self.loss.late_factors(logits_NL, columns.labels_NL, columns.shares_NL)
        weights = columns.loss_weights(late_NL)
        loss, weight = self.loss(columns.shifted(logits_NL), columns.labels_NL, weights, columns.groups_NG)
        loss.backward()  # type: ignore[no-untyped-call]
        return Scores(logits_NL, loss, weight, late_NL=late_NL)

    def observe(self, samples: Samples) -> None:
        """Count samples in the model's statistics: after they were scored, for a server has not seen them either."""
        if isinstance(self.model, DenseModel):
            self.model.observe_inputs(samples.dense_NF)
            weights = samples.weights_N
            if samples.late_NL is not None:
                weights = weights[:, None] * samples.late_NL
            self.model.observe_labels(samples.logits_NL, samples.labels_NL, weights)


class OffsetObjective(LossObjective):
    """The loss of a final score, of which the wide part, learned between forward and backward pass, is a constant part.

    The wide part learns the logistic loss of every label from 0 to 1, whatever the `loss` is. Of many ranks all call
    its step, with samples or without.
    """

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        labels_NL, has_samples = columns.labels_NL, len(columns.labels_NL) > 0
        assert columns.offset_step is not None
        net_NL = score(self.net, columns.inputs, bfloat16=bfloat16) if has_samples else torch.zeros_like(labels_NL)
        # the only wait for a device: the net's logits are copied to the host, and the final ones back
        arrays = columns.offset_step(np.ascontiguousarray(net_NL.detach().cpu().numpy()))
        if not has_samples:
            return Scores.of_none(columns)
        logits_NL, errors_NL, scored_NL = (torch.from_numpy(array).to(net_NL.device) for array in arrays)
        late_NL = self.loss.late_factors(logits_NL, labels_NL, columns.shares_NL)
        weights = columns.loss_weights(late_NL)
        gradient = self.loss.gradient(columns.shifted(logits_NL), labels_NL, weights, errors_NL, columns.groups_NG)
        net_NL.backward(gradient.errors_NL)  # type: ignore[no-untyped-call]
        return Scores(scored_NL, gradient.loss, gradient.weight, late_NL=late_NL)


class CompiledObjective(LossObjective):
    """The same losses of a net that is a program, without autograd. Leaves the rows' gradients in `grads_BD`.

    With an `offset_step` its scores are a part of the final ones, as for an OffsetObjective.
    """

    def __init__(self, model: nn.Module, loss: Loss, net: CompiledNet) -> None:
        super().__init__(model, loss)
        self.program = net
        self.grads_BD = np.zeros((1, 1), np.float32)  # of the newest step's rows, sample by sample; a last row is 0

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        inputs = columns.inputs
        logits, errors_NL = self.program.forward(inputs), None
        scored = logits
        if columns.offset_step is not None:
            logits, errors, scored = columns.offset_step(logits)
            errors_NL = torch.from_numpy(errors)
        logits_NL = torch.from_numpy(logits)
        late_NL = self.loss.late_factors(logits_NL, columns.labels_NL, columns.shares_NL)
        weights = columns.loss_weights(late_NL)
        errors_NL, loss, weight = self.loss.gradient(
            columns.shifted(logits_NL), columns.labels_NL, weights, errors_NL, columns.groups_NG
        )
        errors = errors_NL.numpy()
        num_fields = inputs.categorical.shape[1] + inputs.pooled.shape[1]
        self.grads_BD = np.empty((len(errors) * num_fields + 1, inputs.categorical.shape[2]), np.float32)
        self.grads_BD[-1] = 0
        norm = self.program.backward(errors, self.grads_BD[:-1].reshape(len(errors), -1))
        # what a loss learns beside the program has a part in the norm too: then it is that of all gradients
        is_all = self.loss.own is None and self.loss.task_weights is None
        return Scores(torch.from_numpy(scored), loss, weight, norm if is_all else None, late_NL)


class TwoTowerObjective(LossObjective):
    """Scores of the samples' own items, and a loss over the items of the batch, of many ranks of this rank's batch."""

    def __init__(self, model: TwoTower, batch: LocalBatch) -> None:
        super().__init__(model)
        self.towers, self.batch = model, batch
        self._frequencies: Frequencies | None = None  # of the newest step

    def learn(self, columns: StepColumns, *, bfloat16: bool) -> Scores:
        inputs, labels_NL, weights_N, _, ids_N, *_ = columns
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


class LearningStep:
    """Learns any objective. A step whose gradients are not finite updates nothing of the net."""

    def __init__(self, model: nn.Module, update: NetUpdate, batch: LocalBatch | None = None) -> None:
        """`batch`: of many ranks the GlobalBatch; such a step cannot be captured."""
        self.model, self.update, self.batch = model, update, batch or LocalBatch(update)

    def __call__(self, objective: LossObjective, columns: StepColumns, *, bfloat16: bool) -> StepOutcome:
        self.update.optimizer.zero_grad()
        scores = objective.learn(columns, bfloat16=bfloat16)
        counted_N = columns.weights_N if columns.counted_N is None else columns.counted_N
        samples = Samples(columns.inputs.dense, columns.labels_NL, counted_N, scores.logits_NL.detach(), scores.late_NL)
        samples, loss, weight, norm = self.batch.reduce(samples, scores)
        norm = norm.to(loss.device)
        skipped: Tensor | bool
        # one overflow would stay in the net for ever; the table rejects such gradients row by row
        if self.update.on_device:
            skipped = ~torch.isfinite(norm)
            # other nets have no statistics
            buffers = statistics_of(self.model) if isinstance(self.model, DenseModel) else []
            before = [buffer.clone() for buffer in buffers]
            objective.observe(samples)
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
        else:
            skipped = not math.isfinite(norm)
            if not skipped:
                objective.observe(samples)
        applied = self.update.apply(weight, norm, skipped)
        return StepOutcome(samples.logits_NL, samples.labels_NL, samples.weights_N, loss, weight, skipped, *applied)


def statistics_of(model: nn.Module) -> list[Tensor]:
    """Return the net's buffers; those of the wide part, which the host learns, are none of its statistics."""
    part = wide_part_of(model)
    others = set() if part is None else {id(buffer) for buffer in part.buffers()}
    return [buffer for buffer in model.buffers() if id(buffer) not in others]


def score(net: nn.Module, inputs: ModelInputs, *, bfloat16: bool) -> Tensor:
    """Return float32 logits."""
    with torch.autocast(inputs.dense.device.type, torch.bfloat16) if bfloat16 else nullcontext():
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
    num_scored: int = 0  # samples that are first ones of their labels
    num_scored_before: int = 0  # of those, the ones of other ranks that come before this rank's own

    def take(self, rows: npt.NDArray[np.int64]) -> "StepReport":
        """Return the report with these samples alone."""
        columns = (self.logits_NL[rows], self.labels_NL[rows], self.weights_N[rows])
        return replace(self, logits_NL=columns[0], labels_NL=columns[1], weights_N=columns[2])


def start_report(
    outcome: StepOutcome, transfer: TransferStream | None, decision: StepDecision
) -> Callable[[], StepReport]:
    """Start to copy an outcome to the host; the returned call waits for the copy."""
    if transfer is None:
        columns = [part.numpy() for part in outcome[:3]]
        return partial(report_of, [*columns, *outcome[3:]], decision)
    tensors = [part for part in outcome if isinstance(part, Tensor)]  # on a device every part is one
    fetch = transfer.fetch_async(torch.cat([part.reshape(-1).float() for part in tensors]))
    shapes = [tuple(part.shape) for part in tensors]

    def wait() -> StepReport:
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        parts = np.split(fetch(), ends[:-1])
        return report_of([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], decision)

    return wait


def report_of(outcome: Sequence[Any], decision: StepDecision) -> StepReport:
    """Return the report of a step from its outcome: three arrays, then numbers."""
    logits_NL, labels_NL, weights_N, *numbers = outcome
    loss, weight, skipped, gradient_norm, clipped = map(float, numbers)
    has_weight = weight > 0
    return StepReport(
        logits_NL,
        labels_NL,
        weights_N,
        loss / weight if has_weight else float("nan"),
        bool(skipped),
        gradient_norm=gradient_norm / weight if has_weight else float("nan"),
        clipped=bool(clipped),
        num_scored=decision.num_scored,
        num_scored_before=decision.num_scored_before,
    )
