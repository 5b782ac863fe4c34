"""PLE (Tang et al. 2020, "Progressive layered extraction"): levels of shared experts and of experts of one label.

A label's gate mixes its own experts and the shared ones, never those of other labels, so labels that disagree disturb
each other less. Between levels a gate more mixes all experts into what the next level's shared experts see.
"""

# N samples, I inputs of a level, K experts, H outputs of an expert, L labels
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec
from springtide.app.models.multitask.towers import MixtureGate, MultitaskModel, check_count, check_expert, experts


class PLE(MultitaskModel):
    """`num_specific` experts of each label and `num_shared` for all, in each of `num_levels`; one level is CGC.

    `expert` and `tower` are the hidden layers of each expert and of each label's tower.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_levels: int = 1,
        num_specific: int = 1,
        num_shared: int = 1,
        expert: Sequence[int] = (128,),
        tower: Sequence[int] = (),
        wide: bool = True,
    ) -> None:
        super().__init__(spec, wide=wide)
        hidden = check_expert(expert)
        check_count("num_specific", num_specific)
        check_count("num_shared", num_shared, least=0)
        self.levels = nn.ModuleList()
        num_inputs = self.num_inputs
        for level in range(check_count("num_levels", num_levels), 0, -1):
            self.levels.append(
                ExtractionLevel(num_inputs, hidden, spec.num_labels, num_specific, num_shared, is_last=level == 1)
            )
            num_inputs = hidden[-1]
        self.add_towers(hidden[-1], tower)

    def tower_inputs(self, inputs_NI: Tensor) -> list[Tensor]:
        own, shared_NI = [inputs_NI] * self.spec.num_labels, inputs_NI
        for level in self.levels:
            own, shared_NI = level(own, shared_NI)
        return own


class ExtractionLevel(nn.Module):
    """Customized gate control: experts of each label and shared ones, and a gate for each label."""

    def __init__(
        self,
        num_inputs: int,
        hidden: list[int],
        num_labels: int,
        num_specific: int,
        num_shared: int,
        *,
        is_last: bool,
    ) -> None:
        """`is_last`: no level follows, so there is no gate for what labels share."""
        super().__init__()
        self.specific = nn.ModuleList(experts(num_specific, num_inputs, hidden) for _ in range(num_labels))
        self.shared = experts(num_shared, num_inputs, hidden)
        self.gates = nn.ModuleList(MixtureGate(num_inputs, num_specific + num_shared) for _ in range(num_labels))
        self.shared_gate: MixtureGate | None = None
        if not is_last:
            self.shared_gate = MixtureGate(num_inputs, num_labels * num_specific + num_shared)

    def forward(self, own: list[Tensor], shared_NI: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return what each label and what all labels have learned to see; of the last level the latter is its input."""
        shared = [expert(shared_NI) for expert in self.shared]
        specific = []
        for of_label, own_NI in zip(self.specific, own, strict=True):
            assert isinstance(of_label, nn.ModuleList)
            specific.append([expert(own_NI) for expert in of_label])
        mixed = [
            gate(own_NI, torch.stack([*of_label, *shared], dim=1))
            for gate, own_NI, of_label in zip(self.gates, own, specific, strict=True)
        ]
        if self.shared_gate is None:
            return mixed, shared_NI
        everyone = [outputs_NH for of_label in specific for outputs_NH in of_label]
        return mixed, self.shared_gate(shared_NI, torch.stack([*everyone, *shared], dim=1))
