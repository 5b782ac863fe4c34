"""The dense net's part of a step: score, gradients, statistics, update; on a device without waiting for it."""

# N samples, L labels, D dimension
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from springtide_client.model.inputs import ModelInputs
from torch import Tensor, nn

from app.models.interface import DenseModel
from app.models.losses.loss import Loss
from app.training.optimization.net_update import NetUpdate
from app.training.step.union import Union

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


class HostStep:
    """On the host, where reading a tensor's value costs nothing."""

    def __init__(
        self, model: nn.Module, update: NetUpdate, loss: Loss | None = None, union: Union | None = None
    ) -> None:
        """`union`: of many ranks' batches."""
        self.model, self.update, self.loss, self.union = model, update, loss or Loss((), model), union

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
        if len(labels_NL):
            logits_NL = score(self.model, inputs, bfloat16=bfloat16)
            loss, weight = self.loss(logits_NL, labels_NL, weights_N, groups_NG)
            loss.backward()  # type: ignore[no-untyped-call]
        else:  # of many ranks
            logits_NL, loss, weight = labels_NL, labels_NL.sum(), weights_N.sum()
        if self.union is None:
            norm = self.update.gradient_norm()
        else:
            loss, weight, norm = self.union.add_up(loss, weight)
            samples = self.union.exchange_samples(inputs.dense, labels_NL, weights_N, logits_NL)
            dense_NF, labels_NL, weights_N, logits_NL = samples
            inputs = inputs._replace(dense=dense_NF)
        skipped = ~torch.isfinite(norm)
        # one overflow would stay in the net for ever; the table rejects such gradients row by row
        if not skipped:
            observe(self.model, inputs, logits_NL.detach(), labels_NL, weights_N)
        gradients = self.update.apply(weight, norm, skipped)
        return StepOutcome(logits_NL.detach(), loss.detach(), weight, skipped, *gradients)


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
        union: Union | None = None,
    ) -> None:
        """`union`: of many ranks' batches; such a step cannot be captured."""
        self.model, self.update, self.net = model, update, model if net is None else net
        self.loss, self.union = loss or Loss((), model), union

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
        if len(labels_NL):
            logits_NL = score(self.net, inputs, bfloat16=bfloat16)
            loss, weight = self.loss(logits_NL, labels_NL, weights_N, groups_NG)
            loss.backward()  # type: ignore[no-untyped-call]
        else:  # of many ranks
            logits_NL, loss, weight = labels_NL, labels_NL.sum(), weights_N.sum()
        if self.union is None:
            norm = self.update.gradient_norm()
        else:
            loss, weight, norm = self.union.add_up(loss, weight)
            samples = self.union.exchange_samples(inputs.dense, labels_NL, weights_N, logits_NL)
            dense_NF, labels_NL, weights_N, logits_NL = samples
            inputs = inputs._replace(dense=dense_NF)
        norm = norm.to(loss.device)
        skipped = ~torch.isfinite(norm)
        if isinstance(self.model, DenseModel):
            statistics = list(self.model.buffers())
            before = [buffer.clone() for buffer in statistics]
            observe(self.model, inputs, logits_NL.detach(), labels_NL, weights_N)
            for buffer, old in zip(statistics, before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
        gradients = self.update.apply(weight, norm, skipped)
        return StepOutcome(logits_NL.detach(), loss.detach(), weight, skipped, *gradients)


def score(net: nn.Module, inputs: ModelInputs, *, bfloat16: bool) -> Tensor:
    """Return float32 logits."""
    with torch.autocast(inputs.dense.device.type, torch.bfloat16, enabled=bfloat16):
        logits_NL: Tensor = net(*inputs)
    return logits_NL.float()


def observe(model: nn.Module, inputs: ModelInputs, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
    """Count a batch in the model's statistics: after it was scored, for a server has not seen it either."""
    if isinstance(model, DenseModel):
        model.observe_inputs(inputs.dense)
        model.observe_labels(logits_NL, labels_NL, weights_N)


def row_inputs_by_name(leaves: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the row inputs by their names in ModelInputs."""
    return dict(zip(ModelInputs._fields, leaves, strict=False))


def backward_into_rows(inputs: ModelInputs, grads: Sequence[Tensor | None]) -> None:
    """Continue the backward pass from the row inputs to the table's rows."""
    pairs = [(rows, g) for rows, g in zip(inputs, grads, strict=False) if rows.requires_grad and g is not None]
    if pairs:  # there are none without samples
        torch.autograd.backward([rows for rows, _ in pairs], [g for _, g in pairs])
