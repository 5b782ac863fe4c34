"""Losses of each sample by itself. All are sums over samples, so that a row's step does not depend on the batch."""

# N samples
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus


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
