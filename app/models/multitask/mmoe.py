"""MMoE (Ma et al. 2018, "Modeling task relationships in multi-task learning with multi-gate mixture-of-experts").

All labels share the experts; each label mixes them by a softmax gate of its own, so labels that disagree can use
different ones.
"""

# N samples, I inputs of the net, K experts, H outputs of an expert
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec
from springtide.app.models.multitask.towers import MixtureGate, MultitaskModel, check_count, check_expert, experts


class MMoE(MultitaskModel):
    """`expert` and `tower` are hidden layers: of each of the `num_experts` experts, and of each label's tower."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_experts: int = 4,
        expert: Sequence[int] = (128,),
        tower: Sequence[int] = (),
        wide: bool = True,
    ) -> None:
        super().__init__(spec, wide=wide)
        hidden = check_expert(expert)
        self.experts = experts(check_count("num_experts", num_experts), self.num_inputs, hidden)
        self.gates = nn.ModuleList(MixtureGate(self.num_inputs, num_experts) for _ in spec.labels)
        self.add_towers(hidden[-1], tower)

    def tower_inputs(self, inputs_NI: Tensor) -> list[Tensor]:
        experts_NKH = torch.stack([expert(inputs_NI) for expert in self.experts], dim=1)
        return [gate(inputs_NI, experts_NKH) for gate in self.gates]
