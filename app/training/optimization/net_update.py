"""Update of the net after a backward pass: gradients are gathered and clipped, the optimizer steps, averages follow.

Everything that depends on the stream is decided on the host before the batch; on a device nothing is read back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from springtide.app.training.config import DenseOptimizerConfig, TrainConfig
from springtide.app.training.optimization.dense_optimizer import build_optimizer, optimizer_tensors, restore_optimizer

OPTIMIZER, AVERAGE, ACCUMULATED = "optimizer.", "average.", "accumulated."  # of the names in a version, after `state.`


class GradientReport(NamedTuple):
    """Of a batch: the norm of its gradients, and whether gradients were clipped before they were applied."""

    norm: Tensor
    clipped: Tensor | bool


class NetUpdate:
    """Owns the optimizer of a net, the learning rate, gathered gradients and averages."""

    def __init__(self, model: nn.Module, config: TrainConfig, *, on_device: bool = False) -> None:
        """`on_device`: numbers that change from step to step are tensors, which a CUDA graph reads.

        ValueError if the model's `parameter_groups` do not fit it.
        """
        self.model, self.config, self.on_device = model, config, on_device
        self._parameters = list(model.parameters())  # found once: that walks through all modules
        dense, self.schedule = DenseOptimizerConfig.of(config.optimizer), config.schedule
        self._has_schedule = not self.schedule.is_constant
        self.optimizer = build_optimizer(dense, model)
        self.configured_lr = self.lr = dense.lr
        self.gathered = GradientSum(model, config.accumulate_batches)
        half_life = config.ema_half_life_samples
        self.averages = ParameterAverages(model, half_life) if half_life else None
        self._average_weight: float | Tensor = 0.0
        if on_device:
            device = next((parameter.device for parameter in model.parameters()), None)
            self._average_weight = torch.zeros((), device=device)
            if self._has_schedule:
                self.optimizer.lr = torch.full((), self.lr, device=device)

    def begin_batch(self, num_samples: int, num_trained: int) -> None:
        """Set what depends on the stream: `num_trained` samples are trained once this batch is learned."""
        if self._has_schedule:
            self.lr = self.configured_lr * self.schedule.factor(num_trained)
            self.optimizer.lr = set_number(self.optimizer.lr, self.lr)
        if self.averages is not None:
            self._average_weight = set_number(self._average_weight, self.averages.weight(num_samples, num_trained))

    @property
    def is_gathering(self) -> bool:
        """True if gradients of several batches are applied together, now or later."""
        return self.gathered.num_batches > 1 or self.gathered.num_gathered > 0

    @property
    def form(self) -> tuple[bool, bool]:
        """Return what differs between the work of one batch and that of another; a CUDA graph is of one form."""
        return self.is_gathering, self.gathered.is_last

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients together; not finite if one of them is not."""
        gradients = self._gradients()
        if not gradients:
            return torch.zeros(())
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return norm

    def apply(self, weight: Tensor, norm: Tensor, skip: Tensor | bool) -> GradientReport:
        """1. Gather gradients. 2. Clip them. 3. Step. 4. Move the averages. Nothing is learned if `skip` is True.

        `weight` is the sum of the batch's weights, `norm` what `gradient_norm` returned; `skip` is a tensor on a
        device, which the host does not read.
        """
        clipped, gathered = self._nothing_clipped(norm), self.gathered
        if not self.is_gathering:
            if self.on_device or not skip:
                clipped = self._clip_and_step(weight, norm, skip if isinstance(skip, Tensor) else None)
        else:
            gathered.add(weight, skip if isinstance(skip, Tensor) else torch.tensor(skip))
            if gathered.is_last:
                is_empty = gathered.num_added == 0
                gathered.hand_over()
                if self.on_device or not is_empty:
                    sum_norm = self.gradient_norm()
                    clipped = self._clip_and_step(gathered.weight, sum_norm, is_empty if self.on_device else None)
                gathered.clear(keep=self.on_device)
        if self.averages is not None:
            self.averages.update(self._average_weight)
        return GradientReport(norm, clipped)

    def prepare(self) -> list[Tensor]:
        """Create what the first batches would create, and return everything that a batch changes beside the net."""
        self.optimizer.prepare()
        changed = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        if self.is_gathering:
            self.gathered.prepare()
            changed += [*self.gathered.sums.values(), self.gathered.num_added, self.gathered.weight]
        return changed + ([] if self.averages is None else self.averages.averages)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that a trainer needs to go on, by the names in a version after `state.`."""
        tensors = {f"{OPTIMIZER}{name}": one for name, one in optimizer_tensors(self.optimizer, self.model).items()}
        if self.is_gathering:
            tensors |= {f"{ACCUMULATED}{name}": one for name, one in self.gathered.tensors().items()}
        if self.averages is not None:
            tensors |= {f"{AVERAGE}{name}": one for name, one in self.averages.named().items()}
        return tensors

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `tensors` returned. Call it when the net's parameters are restored."""
        restore_optimizer(self.optimizer, self.model, _group(arrays, OPTIMIZER))
        self.gathered.restore(_group(arrays, ACCUMULATED))
        if self.averages is not None:
            self.averages.restore(_group(arrays, AVERAGE))

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def _nothing_clipped(self, norm: Tensor) -> Tensor | bool:
        """False; on a device a tensor there, as all of a step's outcome is."""
        return torch.zeros_like(norm, dtype=torch.bool) if self.on_device else False

    def _clip_and_step(self, weight: Tensor, norm: Tensor, skip: Tensor | None) -> Tensor | bool:
        clipped = self._nothing_clipped(norm)
        if self.config.clip_norm:
            clipped = clip_by_norm(self._gradients(), norm, weight * self.config.clip_norm)
        elif self.config.clip_value:
            clipped = clip_by_value(self._gradients(), weight * self.config.clip_value)
        self.optimizer.step(skip)
        return clipped


def set_number(number: float | Tensor, value: float) -> float | Tensor:
    """Return the value: the same tensor, if it is in one."""
    return number.fill_(value) if isinstance(number, Tensor) else value


def _group(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


NORM_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


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


GRADIENT = "gradient."
AddUp = Callable[[dict[nn.Parameter, Tensor], bool], dict[nn.Parameter, Tensor]]


class GradientSum:
    """The sum of the gradients of up to `num_batches` batches, and of their weights.

    Of many ranks each gathers its own, and exchanges nothing meanwhile. A version has the sums of all, which `merge`
    finds; learning goes on with each rank's own, so it does not depend on when versions are written. A restart gives
    all of them to the first rank.
    """

    def __init__(self, model: nn.Module, num_batches: int) -> None:
        self.model, self.num_batches = model, num_batches
        self.sums: dict[nn.Parameter, Tensor] = {}
        self.num_gathered = 0  # batches since the gradients were applied, those without a finite gradient included
        device = next((parameter.device for parameter in model.parameters()), None)
        self.num_added = torch.zeros((), device=device)  # of them, those whose gradients are in the sum
        self.weight = torch.zeros((), device=device)
        self._add_up: AddUp | None = None
        self._is_first = True
        self._are_of_all = True  # the sums are those of all ranks
        self._merged: dict[nn.Parameter, Tensor] | None = None

    def share(self, add_up: AddUp, *, is_first: bool) -> None:
        """Gather this rank's part of gradients of many ranks. `add_up` returns all ranks' sums; True: in float32."""
        self._add_up, self._is_first = add_up, is_first

    def merge(self) -> None:
        """Let `tensors` be those of all ranks, until the next batch. All ranks, after the same batch."""
        self._merged = self._totals(exact=True)

    def _totals(self, *, exact: bool) -> dict[nn.Parameter, Tensor]:
        return self.sums if self._add_up is None or self._are_of_all else self._add_up(self.sums, exact)

    @property
    def is_last(self) -> bool:
        """True if the gradients are to be applied after the next batch."""
        return self.num_gathered + 1 >= self.num_batches

    def end_batch(self) -> None:
        """Count a batch. On the host alone: a CUDA graph does not."""
        self.num_gathered += 1
        if self.num_gathered >= self.num_batches:
            self.num_gathered = 0

    def prepare(self) -> None:
        """Create all sums, so that a CUDA graph finds them."""
        for parameter in self.model.parameters():
            self.sums.setdefault(parameter, torch.zeros_like(parameter, requires_grad=False))

    def add(self, weight: Tensor, skip: Tensor) -> None:
        """Add the parameters' gradients, and the weight of their samples; nothing if `skip` is True."""
        with torch.no_grad():
            if self._are_of_all and not self._is_first:  # the first rank has them
                for total in self.sums.values():
                    total.zero_()
            self._are_of_all, self._merged = False, None
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    total = self.sums.setdefault(parameter, torch.zeros_like(parameter, requires_grad=False))
                    total.add_(torch.where(skip, 0.0, parameter.grad))
            self.num_added.add_(torch.where(skip, 0.0, 1.0))
            self.weight.add_(torch.where(skip, 0.0, weight))

    def hand_over(self) -> None:
        """Make the sums, of all ranks, the parameters' gradients."""
        for parameter, total in self._totals(exact=False).items():
            parameter.grad = total

    def clear(self, *, keep: bool) -> None:
        """Start from zero; `keep` the tensors, which a CUDA graph refers to."""
        self._are_of_all, self._merged = True, None
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.grad = None
            for total in self.sums.values():
                total.zero_()
            self.num_added.zero_()
            self.weight.zero_()
        if not keep:
            self.sums.clear()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything by name, themselves."""
        sums = self.sums if self._merged is None else self._merged
        named = {
            f"{GRADIENT}{name}": sums[parameter]
            for name, parameter in self.model.named_parameters()
            if parameter in sums
        }
        counts = {"num_gathered": torch.tensor(self.num_gathered), "num_added": self.num_added, "weight": self.weight}
        return named | counts

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from these; without any nothing is gathered yet."""
        self.clear(keep=False)
        self.num_gathered = int(arrays.get("num_gathered", 0))
        for name, number in (("num_added", self.num_added), ("weight", self.weight)):
            number.fill_(float(arrays.get(name, 0)))
        for name, parameter in self.model.named_parameters():
            if (array := arrays.get(f"{GRADIENT}{name}")) is not None:
                self.sums[parameter] = torch.from_numpy(np.array(array)).to(parameter.device)


# while the log is young, the half-life is this part of the samples trained, so that first weights fade away at once
PART_OF_SAMPLES = 0.1


class ParameterAverages:
    """Averages beside the parameters of a net. Statistics (buffers) are not averaged."""

    def __init__(self, model: nn.Module, half_life_samples: int) -> None:
        """They begin as the parameters are."""
        self.model, self.half_life_samples = model, half_life_samples
        self.parameters: list[Tensor] = list(model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    def weight(self, num_samples: int, num_trained: int) -> float:
        """Return the weight of the parameters in the average after a batch.

        `num_samples` are in the batch, `num_trained` were trained when it was learned, the batch included.
        """
        half_life = min(self.half_life_samples, PART_OF_SAMPLES * num_trained)
        return 1.0 - math.pow(0.5, num_samples / half_life)

    def update(self, weight: float | Tensor) -> None:
        """Move the averages towards the parameters."""
        with torch.no_grad():
            if isinstance(weight, float):
                torch._foreach_lerp_(self.averages, self.parameters, weight)
                return
            differences = torch._foreach_sub(self.parameters, self.averages)
            torch._foreach_mul_(differences, weight)
            torch._foreach_add_(self.averages, differences)

    def named(self) -> dict[str, Tensor]:
        """Return each parameter's average by its name; a parameter that has two names is there twice."""
        places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        names = self.model.named_parameters(remove_duplicate=False)
        return {name: self.averages[places[id(parameter)]] for name, parameter in names}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from these; the average of a parameter that is not among them begins as the parameter is."""
        averages = self.named()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters(remove_duplicate=False):
                given = arrays.get(name)
                averages[name].copy_(parameter if given is None else torch.from_numpy(np.array(given)))
