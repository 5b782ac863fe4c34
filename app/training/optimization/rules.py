"""The update rules of optimizers that torch has no fused kernel for on every device: of one parameter at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from springtide.app.training.config import DenseOptimizerConfig

LearningRate = float | Tensor
Rule = Callable[[Tensor, Tensor, dict[str, Tensor], LearningRate], None]


def rule_of(config: DenseOptimizerConfig) -> Rule:
    """Return the function that updates a parameter and its state by a gradient."""
    momentum, beta1, beta2, eps = config.momentum, config.beta1, config.beta2, config.eps

    def sgd(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: LearningRate) -> None:
        if momentum:
            gradient = state["momentum_buffer"].mul_(momentum).add_(gradient)
        subtract(parameter, gradient, lr)

    def adagrad(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: LearningRate) -> None:
        roots = state["sum"].addcmul_(gradient, gradient).sqrt().add_(eps)
        if isinstance(lr, Tensor):
            parameter.sub_(gradient / roots * lr)
        else:
            parameter.addcdiv_(gradient, roots, value=-lr)

    def lion(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: LearningRate) -> None:
        mean = state["exp_avg"]
        subtract(parameter, torch.lerp(gradient, mean, beta1).sign_(), lr)
        mean.lerp_(gradient, 1 - beta2)

    return {"sgd": sgd, "adagrad": adagrad, "lion": lion}[config.name]


def state_names(config: DenseOptimizerConfig) -> tuple[str, ...]:
    """Return the names of a parameter's state, tensors of its shape."""
    if config.name == "sgd":
        return ("momentum_buffer",) if config.momentum else ()
    return {"adagrad": ("sum",), "lion": ("exp_avg",)}[config.name]


def subtract(parameter: Tensor, direction: Tensor, lr: LearningRate) -> None:
    """Move a parameter against a direction."""
    if isinstance(lr, Tensor):
        parameter.sub_(direction * lr)
    else:
        parameter.add_(direction, alpha=-lr)
