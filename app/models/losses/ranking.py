"""Losses of samples ranked against each other, within a batch or within groups of it.

Their scale is that of the logistic loss: with a share r of positives a positive's gradient is about 1 - r and a
negative's about r, however many samples the batch or the group has. A group without a positive or without a negative
teaches nothing. Weights count as so many samples.
"""

# N samples
import torch
from torch import Tensor
from torch.nn.functional import softplus


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
