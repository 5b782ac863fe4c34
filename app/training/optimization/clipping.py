"""Gradient clipping by norm or by value, without reading anything back from a device.

The loss is a sum over samples, so limits are of the mean gradient: they mean the same for a batch of any size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

NORM_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together."""
    return torch.nn.utils.get_total_norm(gradients)


def clip_by_norm(gradients: Sequence[Tensor], norm: Tensor, limit: Tensor) -> Tensor:
    """Scale gradients whose norm is above the limit down to it; returns True if they were."""
    if gradients:
        torch._foreach_mul_(list(gradients), ((norm + NORM_EPS).reciprocal() * limit).clamp(max=1.0))
    return norm > limit


def clip_by_value(gradients: Sequence[Tensor], limit: Tensor) -> Tensor:
    """Limit every element to the range from -limit to limit; returns True if that changed one."""
    largest = total_largest(gradients, limit)
    for gradient in gradients:
        bound = limit.to(gradient.dtype)
        gradient.clamp_(-bound, bound)
    return largest > limit


def total_largest(gradients: Sequence[Tensor], limit: Tensor) -> Tensor:
    """Return the largest magnitude among all elements, 0 if there are none."""
    norms = torch._foreach_norm([gradient for gradient in gradients if gradient.numel()], float("inf"))
    return torch.stack([norm.to(limit.dtype) for norm in norms]).max() if norms else torch.zeros_like(limit)
