"""The optimizer of the dense net, and its state as named arrays that a version carries."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from app.training.config import DenseOptimizerConfig


def build_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> "Optimizer":
    """Return an optimizer over the model's parameters."""
    parameters = list(model.parameters())
    if config.name == "sgd":
        return SGD(parameters, lr=config.lr)
    return Adam(parameters, lr=config.lr, beta1=config.beta1, beta2=config.beta2, eps=config.eps)


class Optimizer:
    """Updates parameters by gradients. An optimizer of torch.optim would import torch's compiler, a second of CPU."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def prepare(self) -> None:
        """Create the state that the first step would create."""

    def step(self, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient; none if `skip` is True, which only the device may know."""
        with torch.no_grad():
            by_type: dict[torch.dtype, list[Tensor]] = {}
            for parameter in self.parameters:
                if parameter.grad is not None:
                    by_type.setdefault(parameter.dtype, []).append(parameter)
            for updated in by_type.values():
                self.update(updated, [parameter.grad for parameter in updated if parameter.grad is not None], skip)

    def update(self, parameters: list[Tensor], gradients: list[Tensor], skip: Tensor | None) -> None:
        """Apply the rule to parameters of one dtype."""
        raise NotImplementedError


class SGD(Optimizer):
    """Plain gradient descent."""

    def __init__(self, parameters: list[nn.Parameter], *, lr: float) -> None:
        super().__init__(parameters)
        self.lr = lr

    def update(self, parameters: list[Tensor], gradients: list[Tensor], skip: Tensor | None) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if skip is not None:
                gradient = torch.where(skip, 0.0, gradient)
            parameter.add_(gradient, alpha=-self.lr)


class Adam(Optimizer):
    """Equal bit by bit to torch.optim.Adam(fused=True): the kernel is the same."""

    def __init__(self, parameters: list[nn.Parameter], *, lr: float, beta1: float, beta2: float, eps: float) -> None:
        super().__init__(parameters)
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps

    def prepare(self) -> None:
        for parameter in self.parameters:
            self._state_of(parameter)

    def update(self, parameters: list[Tensor], gradients: list[Tensor], skip: Tensor | None) -> None:
        states = [self._state_of(parameter) for parameter in parameters]
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        found_inf = None if skip is None else skip.to(torch.float32)
        torch._foreach_add_(steps, 1)
        if found_inf is not None:
            torch._foreach_sub_(steps, [found_inf] * len(steps))  # the kernel updates nothing then
        torch._fused_adam_(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=self.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state.setdefault(parameter, {})
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state["step"] = torch.zeros((), device=parameter.device)
        return state


def optimizer_arrays(optimizer: Optimizer, model: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """Return the optimizer's state by "<parameter>.<quantity>", copied."""
    tensors = optimizer_tensors(optimizer, model)
    return {name: value.cpu().numpy().copy() for name, value in tensors.items()}


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state itself, by "<parameter>.<quantity>"."""
    return {
        f"{name}.{quantity}": value.detach()
        for name, parameter in model.named_parameters()
        for quantity, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Set what `optimizer_arrays` returned; a parameter without arrays has no state yet."""
    for name, parameter in model.named_parameters():
        prefix = f"{name}."
        state = {
            key[len(prefix) :]: torch.from_numpy(np.array(value)).to(parameter.device)
            for key, value in arrays.items()
            if key.startswith(prefix) and "." not in key[len(prefix) :]
        }
        if state:
            optimizer.state[parameter] = state
