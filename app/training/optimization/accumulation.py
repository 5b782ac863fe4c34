"""Gradients of the dense net, summed over several batches before they are applied: part of every version."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

GRADIENT = "gradient."


class GradientSum:
    """The sum of the gradients of up to `num_batches` batches, and of their weights.

    Of many ranks each gathers its own, without a word to the others; `merge` makes them those of all. From then on the
    first rank has them, and the others gather from zero, so that the ranks' sums always add up to the whole.
    """

    def __init__(self, model: nn.Module, num_batches: int) -> None:
        self.model, self.num_batches = model, num_batches
        self.sums: dict[nn.Parameter, Tensor] = {}
        self.num_gathered = 0  # batches since the gradients were applied, those without a finite gradient included
        device = next((parameter.device for parameter in model.parameters()), None)
        self.num_added = torch.zeros((), device=device)  # of them, those whose gradients are in the sum
        self.weight = torch.zeros((), device=device)
        self._add_up: Callable[[dict[nn.Parameter, Tensor]], None] | None = None
        self._is_first, self._is_merged = True, True

    def share(self, add_up: Callable[[dict[nn.Parameter, Tensor]], None], *, is_first: bool) -> None:
        """Gather this rank's part of gradients of many ranks. `add_up` replaces sums by those of all ranks."""
        self._add_up, self._is_first = add_up, is_first

    def merge(self) -> None:
        """Make the sums those of all ranks, on every rank, if they are not. All ranks, after the same batch."""
        if self._add_up is not None and not self._is_merged:
            self._add_up(self.sums)
        self._is_merged = True

    @property
    def is_last(self) -> bool:
        """True if the gradients are to be applied after the next batch."""
        return self.num_gathered + 1 >= self.num_batches

    def end_batch(self) -> None:
        """Count a batch. On the host alone: a CUDA graph does not."""
        self.num_gathered = 0 if self.is_last else self.num_gathered + 1

    def prepare(self) -> None:
        """Create all sums, so that a CUDA graph finds them."""
        for parameter in self.model.parameters():
            self.sums.setdefault(parameter, torch.zeros_like(parameter, requires_grad=False))

    def add(self, weight: Tensor, skip: Tensor) -> None:
        """Add the parameters' gradients, and the weight of their samples; nothing if `skip` is True."""
        with torch.no_grad():
            if self._is_merged and not self._is_first:
                for total in self.sums.values():
                    total.zero_()
            self._is_merged = False
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    total = self.sums.setdefault(parameter, torch.zeros_like(parameter, requires_grad=False))
                    total.add_(torch.where(skip, 0.0, parameter.grad))
            self.num_added.add_(torch.where(skip, 0.0, 1.0))
            self.weight.add_(torch.where(skip, 0.0, weight))

    def hand_over(self) -> None:
        """Make the sums, of all ranks, the parameters' gradients."""
        self.merge()
        for parameter, total in self.sums.items():
            parameter.grad = total

    def clear(self, *, keep: bool) -> None:
        """Start from zero; `keep` the tensors, which a CUDA graph refers to."""
        self._is_merged = True
        with torch.no_grad():
            for parameter, total in self.sums.items():
                parameter.grad = None
                total.zero_()
            self.num_added.zero_()
            self.weight.zero_()
        if not keep:
            self.sums.clear()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything by name, themselves."""
        named = {
            f"{GRADIENT}{name}": self.sums[parameter]
            for name, parameter in self.model.named_parameters()
            if parameter in self.sums
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
