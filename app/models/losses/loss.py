"""The loss of a batch: each label's own, weighed and summed over labels and samples.

Losses of each sample by itself are sums over samples, so that a row's step does not depend on the batch. Losses of
samples ranked against each other, within a batch or within groups of it, have the scale of the logistic loss: with a
share r of positives a positive's gradient is about 1 - r and a negative's about r, however many samples the batch or
the group has. A group without a positive or without a negative teaches nothing. Weights count as so many samples.
"""

# N samples, L labels, G fields that group samples
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from springtide.app.models.calibrated_model import MIN_SCALE, MOST_DEVIATIONS, label_weights, targets_of
from springtide.app.models.interface import DenseModel
from springtide.app.models.losses.config import LabelLoss
from springtide.kernels.cpu.late_weights import LEAST
from springtide.kernels.cpu.net.loss import logistic_loss
from springtide_client.features import Features

ModelLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


class LossGradient(NamedTuple):
    """Derivatives of a loss by the logits, float32 (N, L), the loss, and the sum of weights."""

    errors_NL: Tensor
    loss: Tensor
    weight: Tensor


class Loss:
    """Sums of the samples' losses times weights, not means: a row's step must not depend on its batch's other samples.

    Masked labels (NaN) do not count. Weights are of samples, (N), or of each label of them, (N, L). A net with a method
    `loss(logits_NL, labels_NL, weights_N)` replaces them all.
    """

    def __init__(self, labels: Sequence[LabelLoss], model: nn.Module) -> None:
        """No labels: the logistic loss of every label."""
        self.own: ModelLoss | None = getattr(model, "loss", None)
        self.task_weights, self.model = task_weights_of(model), model
        if not labels and self.task_weights is not None:
            labels = [LabelLoss()] * self.task_weights.num_labels
        self.labels = tuple(labels)
        if self.own is not None and any(label.late for label in self.labels):
            raise ValueError(
                'the net has a loss of its own, which [labels.*] late = "settle" and "importance_weighted" cannot '
                'weigh: set late = "scale" or "ignore"'
            )
        groups = {label.group for label in self.labels if label.group is not None}
        self.group_columns: tuple[int, ...] = tuple(sorted(groups))
        device = next((tensor.device for tensor in model.state_dict().values()), None)
        self.weights_L = torch.tensor([label.weight for label in self.labels], device=device)
        self.is_log_L = torch.tensor([label.link == "log1p" for label in self.labels], device=device)
        self.is_settled_L = torch.tensor([label.late == "settle" for label in self.labels], device=device)
        self.is_logistic_L = torch.tensor([label.name == "bce" for label in self.labels], device=device)

    @cached_property
    def is_plain(self) -> bool:
        """True if it is the logistic loss of every label, and each counts 1."""
        has_own = self.own is not None or self.task_weights is not None
        return not has_own and all(label.name == "bce" and label.weight == 1 for label in self.labels)

    def groups_of(self, features: Features) -> npt.NDArray[Any] | None:
        """Return for each grouping field the number of each sample's group, below N, int64 (N, G); None: no field."""
        if not self.group_columns:
            return None
        columns = [np.unique(features.categorical_NC[:, c], return_inverse=True)[1] for c in self.group_columns]
        return np.stack(columns, axis=1).astype(np.int64)

    def __call__(
        self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor, groups_NG: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of losses, and the sum of weights of labels that are not masked.

        `weights_N`: (N), or (N, L) where labels differ; a loss of the net's own gets those of the first label.
        """
        masked_NL, given_NL = torch.isnan(labels_NL), label_weights(weights_N)
        weights_NL = torch.where(masked_NL, 0.0, given_NL)
        weight = weights_NL.sum()
        if self.own is not None:
            weights_N = given_NL[:, 0]
            return self.own(logits_NL, labels_NL, weights_N), weight
        labels_NL = torch.where(masked_NL, 0.0, labels_NL)
        if self.is_plain:
            return binary_cross_entropy_with_logits(logits_NL, labels_NL, weights_NL, reduction="sum"), weight
        scales_L = self._error_scales(labels_NL, weights_NL)
        losses = [
            self._of_label(number, logits_NL, labels_NL, weights_NL, groups_NG, scales_L)
            for number in range(len(self.labels))
        ]
        total = torch.stack(losses) * self.factors()
        if self.task_weights is not None:
            # times the weights too: else a label of weight 0 would lower its variance until nothing is finite
            total = total + 0.5 * self.weights_L * self.task_weights.log_variances_L * weights_NL.sum(dim=0)
        return total.sum(), weight

    def late_factors(self, logits_NL: Tensor, labels_NL: Tensor, shares_NL: Tensor | None) -> Tensor | None:
        """Return by what shares multiply the weights of labels, (N, L), by what was predicted; None without shares.

        `shares_NL`: F of labels whose events may come late (kernels/cpu/late_weights.py), NaN of others.
        """
        if shares_NL is None:
            return None
        p_NL = torch.sigmoid(logits_NL.detach().double())
        settled_NL, other_NL = late_weights(labels_NL, p_NL, shares_NL.double())
        factors_NL = torch.where(self.is_settled_L, settled_NL, other_NL)
        return torch.where(torch.isnan(shares_NL), 1.0, factors_NL).float()

    def factors(self) -> Tensor:
        """Return what each label's loss counts, (L)."""
        return self.weights_L if self.task_weights is None else self.weights_L * self.task_weights.factors()

    def gradient(
        self,
        logits_NL: Tensor,
        labels_NL: Tensor,
        weights_N: Tensor,
        errors_NL: Tensor | None,
        groups_NG: Tensor | None = None,
    ) -> LossGradient:
        """Return the derivatives by final logits; those by learned weights of labels are left in their `grad`.

        `errors_NL`: those of the logistic loss, which are kept where that is a label's loss; None: found here, on the
        host.
        """
        if logits_NL.device.type == "cpu" and (self.is_plain or errors_NL is None):
            found_NL = torch.empty_like(logits_NL)
            weights_NL = label_weights(weights_N).expand_as(logits_NL).contiguous()
            loss, weight = logistic_loss(logits_NL.numpy(), labels_NL.numpy(), weights_NL.numpy(), found_NL.numpy())
            errors_NL = found_NL if errors_NL is None else errors_NL
            if self.is_plain:
                return LossGradient(errors_NL, torch.tensor(loss), torch.tensor(weight))
        assert errors_NL is not None
        if self.is_plain:
            with torch.no_grad():
                return LossGradient(errors_NL, *self(logits_NL, labels_NL, weights_N))
        leaf_NL = logits_NL.detach().requires_grad_()
        loss, weight = self(leaf_NL, labels_NL, weights_N, groups_NG)
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf_NL.grad is not None
        if self.own is None:
            errors_NL = torch.where(self.is_logistic_L, self.factors().detach() * errors_NL, leaf_NL.grad)
        else:
            errors_NL = leaf_NL.grad
        return LossGradient(errors_NL, loss.detach(), weight)

    def _of_label(
        self,
        number: int,
        logits_NL: Tensor,
        labels_NL: Tensor,
        weights_NL: Tensor,
        groups_NG: Tensor | None,
        scales_L: Tensor | None,
    ) -> Tensor:
        label = self.labels[number]
        logits_N, labels_N, weights_N = logits_NL[:, number], labels_NL[:, number], weights_NL[:, number]
        if label.is_value:
            assert scales_L is not None
            targets_N = torch.log1p(labels_N) if label.link == "log1p" else labels_N
            errors_N = (logits_N - targets_N) / scales_L[number]
            if label.name == "huber":
                return huber(errors_N, weights_N, delta=label.delta)
            has_scales = isinstance(self.model, DenseModel) and self.model.label_scales() is not None
            return huber(errors_N, weights_N, delta=MOST_DEVIATIONS if has_scales else math.inf)
        if label.name == "focal":
            return focal(logits_N, labels_N, weights_N, gamma=label.gamma, alpha=label.alpha)
        if label.name == "bce":
            return binary_cross_entropy(logits_N, labels_N, weights_N)
        groups_N = None
        if label.group is not None:
            assert groups_NG is not None
            groups_N = groups_NG[:, self.group_columns.index(label.group)]
        return (pairwise if label.name == "pairwise" else listwise)(logits_N, labels_N, weights_N, groups_N)

    def _error_scales(self, labels_NL: Tensor, weights_NL: Tensor) -> Tensor | None:
        """Return by what errors of values are divided, (L): the net's, or while it knows none the batch's own size."""
        if not any(label.is_value for label in self.labels):
            return None
        scales_L = self.model.label_scales() if isinstance(self.model, DenseModel) else None
        if scales_L is None:
            return torch.ones_like(weights_NL[0])
        targets_NL = targets_of(self.is_log_L, labels_NL)
        own_L = torch.sqrt((weights_NL * targets_NL.square()).sum(0) / weights_NL.sum(0).clamp(min=1e-12))
        return torch.where(scales_L > 0, scales_L, own_L.clamp(min=MIN_SCALE))


def late_weights(labels_NL: Tensor, p_NL: Tensor, shares_NL: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `late_weight` of the kernels gives: of labels that are settled, and of others."""
    is_positive_NL = labels_NL > 0.5
    settled_NL = (1 - p_NL) / (2 - p_NL - p_NL * shares_NL).clamp(min=LEAST)
    other_NL = (1 - p_NL) / (1 - p_NL * shares_NL).clamp(min=LEAST)
    return torch.where(is_positive_NL, 1 / (1 + shares_NL), settled_NL), torch.where(is_positive_NL, 1.0, other_NL)


def binary_cross_entropy(logits_N: Tensor, labels_N: Tensor, weights_N: Tensor) -> Tensor:
    """Return the logistic loss of labels from 0 to 1."""
    return binary_cross_entropy_with_logits(logits_N, labels_N, weights_N, reduction="sum")


def focal(logits_N: Tensor, labels_N: Tensor, weights_N: Tensor, *, gamma: float, alpha: float | None) -> Tensor:
    """Return the focal loss (Lin et al. 2017): a sample predicted with p of what came counts (1 - p) ** gamma."""
    positive_N, negative_N = softplus(-logits_N), softplus(logits_N)  # -log p, -log(1 - p)
    positive_N, negative_N = positive_N * torch.exp(-gamma * negative_N), negative_N * torch.exp(-gamma * positive_N)
    share = (1.0, 1.0) if alpha is None else (alpha, 1.0 - alpha)
    return (weights_N * (share[0] * labels_N * positive_N + share[1] * (1 - labels_N) * negative_N)).sum()


def huber(errors_N: Tensor, weights_N: Tensor, *, delta: float) -> Tensor:
    """Return half the squared errors up to `delta`, linear beyond it (Huber 1964)."""
    sizes_N = errors_N.abs()
    near_N = sizes_N.clamp(max=delta)
    return (weights_N * near_N * (sizes_N - 0.5 * near_N)).sum()


def pairwise(logits_N: Tensor, labels_N: Tensor, weights_N: Tensor, groups_N: Tensor | None) -> Tensor:
    """Return the logistic loss of the difference of each two samples with different labels (RankNet, Burges 2005).

    A pair counts the difference of its labels. `groups_N`: numbers below N; None: all samples are one group.
    """
    pairs_NN = (labels_N[:, None] - labels_N[None, :]).clamp(min=0) * weights_N[:, None]
    if groups_N is not None:
        pairs_NN = torch.where(groups_N[:, None] == groups_N[None, :], pairs_NN, 0.0)
    shares_N = weights_N / _sums(weights_N, groups_N).clamp(min=torch.finfo(weights_N.dtype).tiny)
    return (pairs_NN * shares_N[None, :] * softplus(logits_N[None, :] - logits_N[:, None])).sum()


def listwise(logits_N: Tensor, labels_N: Tensor, weights_N: Tensor, groups_N: Tensor | None) -> Tensor:
    """Return the softmax loss (ListNet, Cao et al. 2007): -log of each positive's share of its group's exp(logits)."""
    counts_N = weights_N > 0
    highest_N = _highest(torch.where(counts_N, logits_N.detach(), -torch.inf), groups_N)
    highest_N = torch.where(torch.isfinite(highest_N), highest_N, 0.0)
    above_N = torch.where(counts_N, logits_N - highest_N, 0.0)
    total_N = _sums(weights_N * torch.exp(above_N), groups_N).clamp(min=torch.finfo(weights_N.dtype).tiny)
    return (weights_N * labels_N * (torch.log(total_N) - above_N)).sum()


def _sums(values_N: Tensor, groups_N: Tensor | None) -> Tensor:
    """Return for each sample the sum over its group."""
    if groups_N is None:
        return values_N.sum().expand_as(values_N)
    return torch.zeros_like(values_N).index_add(0, groups_N, values_N)[groups_N]


def _highest(values_N: Tensor, groups_N: Tensor | None) -> Tensor:
    """Return for each sample the highest value of its group."""
    if groups_N is None:
        return values_N.max().expand_as(values_N)
    return torch.full_like(values_N, -torch.inf).scatter_reduce(0, groups_N, values_N, "amax")[groups_N]


NAME = "task_weights"  # of the module in the net: its parameter is `task_weights.log_variances_L`


class TaskWeights(nn.Module):
    """Weights of labels by learned uncertainty (Kendall, Gal, Cipolla 2018, "Multi-task learning using uncertainty").

    Each label has a learned log variance s; its loss counts exp(-s), and s / 2 for each sample keeps s from growing.
    Serves training alone: the exported program does not use it.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.log_variances_L = nn.Parameter(torch.zeros(num_labels))

    def factors(self) -> Tensor:
        """Return what each label's loss counts, (L)."""
        return torch.exp(-self.log_variances_L)


def add_task_weights(model: nn.Module, num_labels: int) -> None:
    """Add them to the net, to be learned, published and resumed with it; ValueError if the name is taken."""
    if hasattr(model, NAME):
        raise ValueError(
            f'the net has an attribute {NAME!r} of its own: rename it, or set [train] task_weights = "fixed"'
        )
    model.add_module(NAME, TaskWeights(num_labels))


def task_weights_of(model: nn.Module) -> TaskWeights | None:
    """Return the net's learned weights of labels, if it has them."""
    weights = getattr(model, NAME, None)
    return weights if isinstance(weights, TaskWeights) else None
