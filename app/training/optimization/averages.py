"""The exponential moving average of the parameters, by samples: what followers serve in place of the parameters.

Polyak and Juditsky 1992; an average's noise is less than that of the parameters, which the newest batches moved.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

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
