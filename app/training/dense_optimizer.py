"""The optimizer of the dense net: its settings, and its state as named arrays that a version carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

NAMES = ("adam", "sgd")


@dataclass(frozen=True, kw_only=True)
class DenseOptimizer:
    """Adam (Kingma and Ba 2014) or plain gradient descent."""

    name: str = "adam"
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"[train] optimizer name must be one of {', '.join(NAMES)}, not {self.name!r}")
        if not 0 <= self.lr < float("inf"):
            raise ValueError(f"[train] optimizer lr must be finite and not negative, not {self.lr}")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"[train] optimizer beta1 and beta2 must be in 0..1, not {self.beta1} and {self.beta2}")
        if not 0 < self.eps < float("inf"):
            raise ValueError(f"[train] optimizer eps must be positive, not {self.eps}")

    @staticmethod
    def of(options: Mapping[str, Any]) -> "DenseOptimizer":
        """From the table of a config; ValueError names an unknown key."""
        known = set(DenseOptimizer.__dataclass_fields__)
        if unknown := sorted(set(options) - known):
            raise ValueError(f"[train] optimizer does not know {unknown[0]!r}: it takes {', '.join(sorted(known))}")
        return DenseOptimizer(**options)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer over the model's parameters."""
        parameters = list(model.parameters())
        if not parameters:
            parameters = [nn.Parameter(torch.zeros(0))]  # a net of statistics alone has nothing to move
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr)
        return torch.optim.Adam(parameters, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=True)


def optimizer_arrays(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """Its state by "<parameter>.<quantity>", copied."""
    arrays = {}
    for name, parameter in model.named_parameters():
        for quantity, value in optimizer.state.get(parameter, {}).items():
            arrays[f"{name}.{quantity}"] = value.detach().numpy().copy()
    return arrays


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Sets what optimizer_arrays gave; a parameter without arrays has no state yet."""
    for name, parameter in model.named_parameters():
        prefix = f"{name}."
        state = {
            key[len(prefix) :]: torch.from_numpy(np.array(value))
            for key, value in arrays.items()
            if key.startswith(prefix) and "." not in key[len(prefix) :]
        }
        if state:
            optimizer.state[parameter] = state
