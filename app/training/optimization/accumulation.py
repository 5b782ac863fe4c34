"""Gradients of the dense net, summed over several batches before they are applied: part of every version."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

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
        self.num_gathered = 0 if self.is_last else self.num_gathered + 1

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
