"""The dense net's part of a step: score, gradients, statistics, update; on a device without waiting for it."""

# N samples, L labels, D dimension
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from springtide.app.models.interface import DenseModel
from springtide.app.models.losses.loss import Loss
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.global_batch import GlobalBatch, Samples
from springtide_client.model.inputs import ModelInputs

NUM_ROW_INPUTS = 3  # of a model's inputs: categorical, pooled, sequence


class StepOutcome(NamedTuple):
    """Results, on the device of the step: logits from before it learned, sums over the samples of loss and weight."""

    logits_NL: Tensor
    loss: Tensor
    weight: Tensor
    skipped: Tensor  # True if the net was not updated, because gradients were not finite
    gradient_norm: Tensor  # of the dense net
    clipped: Tensor  # True if gradients were clipped


class DenseStep(Protocol):
    """One step of the dense net; gradients flow back through the inputs to the rows."""

    def __call__(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        *,
        bfloat16: bool,
        groups_NG: Tensor | None = None,
    ) -> StepOutcome:
        """`groups_NG`: `Loss.groups_of`, for losses that rank a sample against others of its group."""
        ...


class Gradients(NamedTuple):
    """Gradients that a backward pass leaves; of many ranks, the samples and sums of all."""

    samples: Samples
    loss: Tensor
    weight: Tensor
    norm: Tensor  # of the dense net's gradients


class HostStep:
    """On the host, where reading a tensor's value costs nothing."""

    def __init__(
        self, model: nn.Module, update: NetUpdate, loss: Loss | None = None, global_batch: GlobalBatch | None = None
    ) -> None:
        """`global_batch`: of many ranks' batches."""
        self.model, self.update, self.loss, self.global_batch = model, update, loss or Loss((), model), global_batch

    def __call__(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        *,
        bfloat16: bool,
        groups_NG: Tensor | None = None,
    ) -> StepOutcome:
        self.update.zero_grad()
        logits_NL = score(self.model, inputs, bfloat16=bfloat16) if len(labels_NL) else labels_NL
        samples = Samples(inputs.dense, labels_NL, weights_N, logits_NL)
        samples, loss, weight, norm = backward(samples, self.loss, self.update, self.global_batch, groups_NG)
        skipped = ~torch.isfinite(norm)
        # one overflow would stay in the net for ever; the table rejects such gradients row by row
        if not skipped:
            observe(self.model, samples)
        applied = self.update.apply(weight, norm, skipped)
        return StepOutcome(samples.logits_NL, loss, weight, skipped, *applied)


class DeviceStep:
    """Submits everything and reads nothing back, so that the device may lag behind, or a CUDA graph capture it.

    `net` is called in the model's place, for example its compiled form.
    """

    def __init__(
        self,
        model: nn.Module,
        update: NetUpdate,
        net: nn.Module | None = None,
        loss: Loss | None = None,
        global_batch: GlobalBatch | None = None,
    ) -> None:
        """`global_batch`: of many ranks' batches; such a step cannot be captured."""
        self.model, self.update, self.net = model, update, model if net is None else net
        self.loss, self.global_batch = loss or Loss((), model), global_batch

    def __call__(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        *,
        bfloat16: bool,
        groups_NG: Tensor | None = None,
    ) -> StepOutcome:
        leaves = [rows.detach().requires_grad_(rows.requires_grad) for rows in inputs[:NUM_ROW_INPUTS]]
        inputs_of_leaves = inputs._replace(**row_inputs_by_name(leaves))
        outcome = self.learn(inputs_of_leaves, labels_NL, weights_N, bfloat16=bfloat16, groups_NG=groups_NG)
        backward_into_rows(inputs, [leaf.grad for leaf in leaves])
        return outcome

    def learn(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        *,
        bfloat16: bool,
        groups_NG: Tensor | None = None,
    ) -> StepOutcome:
        """Update the net, and leave gradients in the row inputs, which are leaves."""
        self.update.zero_grad()
        logits_NL = score(self.net, inputs, bfloat16=bfloat16) if len(labels_NL) else labels_NL
        samples = Samples(inputs.dense, labels_NL, weights_N, logits_NL)
        samples, loss, weight, norm = backward(samples, self.loss, self.update, self.global_batch, groups_NG)
        norm = norm.to(loss.device)
        skipped = ~torch.isfinite(norm)
        if isinstance(self.model, DenseModel):
            statistics = list(self.model.buffers())
            before = [buffer.clone() for buffer in statistics]
            observe(self.model, samples)
            for buffer, old in zip(statistics, before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
        applied = self.update.apply(weight, norm, skipped)
        return StepOutcome(samples.logits_NL, loss, weight, skipped, *applied)


def backward(
    samples: Samples, loss_of: Loss, update: NetUpdate, global_batch: GlobalBatch | None, groups_NG: Tensor | None
) -> Gradients:
    """Compute the gradients of samples with logits. A rank may have no samples."""
    _, labels_NL, weights_N, logits_NL = samples
    if len(labels_NL):
        loss, weight = loss_of(logits_NL, labels_NL, weights_N, groups_NG)
        loss.backward()  # type: ignore[no-untyped-call]
    else:  # of many ranks
        loss, weight = labels_NL.sum(), weights_N.sum()
    return over_ranks(samples, loss, weight, update, global_batch)


def over_ranks(
    samples: Samples, loss: Tensor, weight: Tensor, update: NetUpdate, global_batch: GlobalBatch | None
) -> Gradients:
    """After the backward pass: of many ranks, add up their sums and gradients, and join their samples."""
    if global_batch is None:
        samples = samples._replace(logits_NL=samples.logits_NL.detach())
        return Gradients(samples, loss.detach(), weight, update.gradient_norm())
    loss, weight, norm = global_batch.all_reduce(loss, weight)
    return Gradients(global_batch.exchange_samples(*samples), loss.detach(), weight, norm)


def score(net: nn.Module, inputs: ModelInputs, *, bfloat16: bool) -> Tensor:
    """Return float32 logits."""
    with torch.autocast(inputs.dense.device.type, torch.bfloat16, enabled=bfloat16):
        logits_NL: Tensor = net(*inputs)
    return logits_NL.float()


def observe(model: nn.Module, samples: Samples) -> None:
    """Count samples in the model's statistics: after they were scored, for a server has not seen them either."""
    if isinstance(model, DenseModel):
        model.observe_inputs(samples.dense_NF)
        model.observe_labels(samples.logits_NL, samples.labels_NL, samples.weights_N)


def row_inputs_by_name(leaves: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the row inputs by their names in ModelInputs."""
    return dict(zip(ModelInputs._fields, leaves, strict=False))


def backward_into_rows(inputs: ModelInputs, grads: Sequence[Tensor | None]) -> None:
    """Continue the backward pass from the row inputs to the table's rows."""
    pairs = [(rows, g) for rows, g in zip(inputs, grads, strict=False) if rows.requires_grad and g is not None]
    if pairs:  # there are none without samples
        torch.autograd.backward([rows for rows, _ in pairs], [g for _, g in pairs])
