"""DCN-v2 (Wang et al. 2021, "DCN V2: Improved Deep & Cross Network"): layers that multiply by the inputs again.

A cross layer gives x0 * (W x + b) + x, elementwise. With `rank` W is a low-rank mixture of experts: U g(C g(V x)) for
each expert, with g = tanh, and a softmax over x that weighs the experts.
"""

# N samples, E fields, D dimension, X normalized dense features, I inputs of a layer (E * D + X), K experts, R rank
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_choice, check_layer_sizes, check_size, perceptron


class CrossLayer(nn.Module):
    """One cross layer with a full matrix."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_inputs)

    def forward(self, first_NI: Tensor, x_NI: Tensor) -> Tensor:
        crossed_NI: Tensor = first_NI * self.linear(x_NI) + x_NI
        return crossed_NI


class LowRankCrossLayer(nn.Module):
    """One cross layer with a mixture of low-rank experts."""

    def __init__(self, num_inputs: int, rank: int, num_experts: int) -> None:
        super().__init__()
        self.down_KRI = nn.Parameter(_uniform(num_experts, rank, num_inputs))
        self.core_KRR = nn.Parameter(_uniform(num_experts, rank, rank))
        self.up_KIR = nn.Parameter(_uniform(num_experts, num_inputs, rank))
        self.bias_I = nn.Parameter(torch.zeros(num_inputs))
        self.gate = nn.Linear(num_inputs, num_experts, bias=False)

    def forward(self, first_NI: Tensor, x_NI: Tensor) -> Tensor:
        gates_NK = torch.softmax(self.gate(x_NI), dim=1)
        low_KNR = torch.tanh(x_NI @ self.down_KRI.transpose(1, 2))
        low_KNR = torch.tanh(low_KNR @ self.core_KRR.transpose(1, 2))
        # the gates weigh the low-rank vectors, not the long ones: the map after them is linear
        low_KNR = low_KNR * gates_NK.t().unsqueeze(2)
        mixed_NI = (low_KNR @ self.up_KIR.transpose(1, 2)).sum(dim=0)
        return first_NI * (mixed_NI + self.bias_I) + x_NI


class DCN(CalibratedModel):
    """`layers` cross layers, and a perceptron of `hidden` layers after ("stacked") or beside ("parallel") them.

    `rank`: of the experts' matrices; 0: one full matrix. `experts`: how many a layer has, with a rank.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        layers: int = 2,
        hidden: Sequence[int] = (128,),
        structure: str = "parallel",
        rank: int = 0,
        experts: int = 4,
    ) -> None:
        super().__init__(spec)
        num_inputs = spec.num_fields * spec.dim + self.normalizer.num_outputs
        num_layers, rank = check_size("layers", layers), check_size("rank", rank, least=0)
        num_experts, sizes = check_size("experts", experts), check_layer_sizes("hidden", hidden)
        self.is_parallel = check_choice("structure", structure, ("parallel", "stacked")) == "parallel"
        self.cross = nn.ModuleList(
            LowRankCrossLayer(num_inputs, rank, num_experts) if rank else CrossLayer(num_inputs)
            for _ in range(num_layers)
        )
        self.deep = perceptron([num_inputs, *sizes], last_is_linear=False)
        num_deep = sizes[-1] if sizes else num_inputs
        both = self.is_parallel and bool(sizes)
        self.last = nn.Linear(num_deep + (num_inputs if both else 0), spec.num_labels)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.last.parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        first_NI = torch.cat([fields_NED.flatten(1), dense_NX], dim=1)
        x_NI = first_NI
        for layer in self.cross:
            x_NI = layer(first_NI, x_NI)
        if not len(self.deep):
            last = x_NI
        elif self.is_parallel:
            last = torch.cat([x_NI, self.deep(first_NI).to(x_NI.dtype)], dim=1)
        else:
            last = self.deep(x_NI)
        deep_NL: Tensor = self.last(last).float()
        return deep_NL


def _uniform(num: int, num_out: int, num_in: int) -> Tensor:
    """Return matrices (num, num_out, num_in) that start like those of nn.Linear."""
    bound = num_in**-0.5
    return torch.empty(num, num_out, num_in).uniform_(-bound, bound)
