"""The optimizers of the dense net, and their state as named arrays that a version carries.

Gradients are summed, clipped and given to them in net_update.py.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from springtide.app.models.interface import ParameterGroup, groups_of
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


def build_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> "Optimizer":
    """Return an optimizer over the model's parameters. ValueError if its `parameter_groups` do not fit them."""
    kind = Adam if config.name in ("adam", "adamw") else RuleOptimizer
    return kind(groups_of(model), config)


class StepGroup(NamedTuple):
    """Parameters of one dtype that are updated alike."""

    parameters: list[nn.Parameter]
    lr_factor: float
    weight_decay: float


class Optimizer:
    """Updates parameters by gradients. An optimizer of torch.optim would import torch's compiler, a second of CPU.

    Weight decay is decoupled (Loshchilov and Hutter 2019): parameters are multiplied by 1 - lr * weight_decay.
    """

    def __init__(self, groups: Sequence[ParameterGroup], config: DenseOptimizerConfig) -> None:
        self.config = config
        self.groups = _step_groups(groups, config.weight_decay)
        self.parameters = [parameter for group in groups for parameter in group.parameters]
        self.lr: LearningRate = config.lr
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    def replace_state(self, parameter: Tensor, state: dict[str, Tensor]) -> None:
        """Go on with another state of a parameter."""
        self.state[parameter] = state

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def prepare(self) -> None:
        """Create the state that the first step would create."""
        for parameter in self.parameters:
            self.state_of(parameter)

    def step(self, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient; none if `skip` is True, which only the device may know."""
        with torch.no_grad():
            for group in self.groups:
                updated: list[Tensor] = [one for one in group.parameters if one.grad is not None]
                if updated:
                    lr = self.lr if group.lr_factor == 1 else self.lr * group.lr_factor
                    gradients = [parameter.grad for parameter in updated if parameter.grad is not None]
                    self.update(updated, gradients, skip, lr, group.weight_decay)

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        skip: Tensor | None,
        lr: LearningRate,
        weight_decay: float,
    ) -> None:
        """Apply the rule to parameters of one dtype."""
        raise NotImplementedError

    def state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return a parameter's state, zeros at first."""
        raise NotImplementedError


MOMENTS = itemgetter("exp_avg", "exp_avg_sq", "step")  # of a state
# of each parameter its mean, square and number of steps, and all those numbers as one vector of which they are parts
Moments = tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]


class Adam(Optimizer):
    """Equal bit by bit to torch.optim.Adam(fused=True), or AdamW: the kernels are the same."""

    def __init__(self, groups: Sequence[ParameterGroup], config: DenseOptimizerConfig) -> None:
        super().__init__(groups, config)
        self._moments: dict[tuple[int, ...], Moments] = {}  # by the parameters that are updated

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        skip: Tensor | None,
        lr: LearningRate,
        weight_decay: float,
    ) -> None:
        found_inf = None if skip is None else skip.to(torch.float32)
        if found_inf is None:
            means, squares, steps_of_each, steps = self._moments_of(parameters)
            steps.add_(1)
        else:  # a CUDA graph holds the state: its tensors stay the same
            means, squares, steps_of_each = map(list, zip(*map(MOMENTS, map(self.state_of, parameters)), strict=True))
            torch._foreach_add_(steps_of_each, 1)
            torch._foreach_sub_(steps_of_each, [found_inf] * len(steps_of_each))  # the kernel updates nothing then
        fused = torch._fused_adamw_ if self.config.name == "adamw" else torch._fused_adam_
        fused(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps_of_each,
            lr=lr,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            eps=self.config.eps,
            weight_decay=weight_decay,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )

    def _moments_of(self, parameters: list[Tensor]) -> Moments:
        """Return the moments of parameters, found once: a look at each one's state takes longer than a step."""
        key = tuple(map(id, parameters))
        if key not in self._moments:
            for other in [one for one in self._moments if not set(one).isdisjoint(key)]:
                del self._moments[other]  # a number of steps is in the newest vector only
            states = [self.state_of(parameter) for parameter in parameters]
            steps = torch.stack([state["step"] for state in states])
            for state, step in zip(states, steps.unbind(), strict=True):
                state["step"] = step
            means, squares, steps_of_each = map(list, zip(*map(MOMENTS, states), strict=True))
            self._moments[key] = means, squares, steps_of_each, steps
        return self._moments[key]

    def replace_state(self, parameter: Tensor, state: dict[str, Tensor]) -> None:
        super().replace_state(parameter, state)
        self._moments.clear()

    def state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state.setdefault(parameter, {})
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state["step"] = torch.zeros((), device=parameter.device)
        return state


class RuleOptimizer(Optimizer):
    """Applies a rule to one parameter after the other."""

    def __init__(self, groups: Sequence[ParameterGroup], config: DenseOptimizerConfig) -> None:
        super().__init__(groups, config)
        self.rule = rule_of(config)

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        skip: Tensor | None,
        lr: LearningRate,
        weight_decay: float,
    ) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state_of(parameter)
            changed = [parameter, *state.values()]
            before = [] if skip is None else [tensor.clone() for tensor in changed]
            if weight_decay:
                parameter.mul_(1 - lr * weight_decay)
            self.rule(parameter, gradient, state, lr)
            if skip is not None:
                for tensor, old in zip(changed, before, strict=True):
                    tensor.copy_(torch.where(skip, old, tensor))

    def state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state.setdefault(parameter, {})
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in state_names(self.config)}
        return state


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state itself, by "<parameter>.<quantity>"."""
    return {
        f"{name}.{quantity}": value.detach()
        for name, parameter in model.named_parameters()
        for quantity, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Set what `optimizer_tensors` returned, as arrays; a parameter without arrays has no state yet."""
    for name, parameter in model.named_parameters():
        prefix = f"{name}."
        state = {
            key[len(prefix) :]: torch.from_numpy(np.array(value)).to(parameter.device)
            for key, value in arrays.items()
            if key.startswith(prefix) and "." not in key[len(prefix) :]
        }
        if state:
            optimizer.replace_state(parameter, state)


def _step_groups(groups: Sequence[ParameterGroup], weight_decay: float) -> list[StepGroup]:
    """Join what is updated alike: one call of a kernel costs as much as the update of a small net."""
    joined: dict[tuple[float, float, torch.dtype], list[nn.Parameter]] = {}
    for group in groups:
        for parameter in group.parameters:
            key = group.lr_factor, weight_decay * group.weight_decay_factor, parameter.dtype
            joined.setdefault(key, []).append(parameter)
    return [StepGroup(parameters, *key[:2]) for key, parameters in joined.items()]
