"""DIN (Zhou et al. 2018): how much each element of the history counts depends on the target."""

# N samples, T elements, D dimension, W width of a layer
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_layer_sizes
from springtide.app.models.sequence.sequence_model import History, SequenceModel


class DIN(SequenceModel):
    """`attention`: hidden layers of the activation unit; `softmax`: its weights sum to 1, which the paper's do not."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        attention: Sequence[int] = (36,),
        softmax: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(spec, **shared)
        self.encoder = TargetAttention(spec.dim, check_layer_sizes("attention", attention), softmax=softmax)


class TargetAttention(nn.Module):
    """The sum of the history's rows, each times its weight from the activation unit.

    The unit is a perceptron (PReLU, as in the paper) over element, target, their difference and their product; the
    difference is left out of the first layer, whose weights for element and target can express it.
    """

    def __init__(self, dim: int, hidden: Sequence[int], *, softmax: bool = False) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("attention must name at least one layer size, such as [36]")
        self.softmax = softmax
        self.of_element = nn.Linear(2 * dim, hidden[0])
        self.of_target = nn.Linear(dim, hidden[0], bias=False)
        layers: list[nn.Module] = [nn.PReLU()]
        for num_in, num_out in zip(hidden, [*hidden[1:], 1], strict=True):
            layers += [nn.Linear(num_in, num_out), nn.PReLU()]
        self.unit = nn.Sequential(*layers[:-1])
        for parameter in layers[-2].parameters():
            nn.init.zeros_(parameter)  # all elements count alike: not at all, or with softmax their mean

    def forward(self, target_ND: Tensor, history: History) -> Tensor:
        keys_NTD = history.keys_NTD()
        element_NTW = self.of_element(torch.cat([keys_NTD, keys_NTD * target_ND.unsqueeze(1)], dim=2))
        weights_N1T = self.unit(element_NTW + self.of_target(target_ND).unsqueeze(1)).transpose(1, 2)
        if self.softmax:
            weights_N1T = weights_N1T.masked_fill(~history.mask_NT().unsqueeze(1), -1e9).softmax(dim=2)
        interest_ND: Tensor = (weights_N1T.to(history.rows_NTD.dtype) @ history.rows_NTD).squeeze(1)
        return interest_ND
