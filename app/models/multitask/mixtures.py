"""Nets for several labels: a tower for each label on top of what they share, a perceptron or a mixture of experts."""

# N samples, E fields, D dimension, X normalized dense features, I inputs of the net or of a level, K experts,
# H outputs of an expert or inputs of a tower, L labels
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_layer_sizes, perceptron


class MultitaskModel(CalibratedModel):
    """A subclass gives each label's tower its inputs; the net's own are all rows and the normalized dense features.

    `wide`: as in DLRM, each row's first elements and the products of all pairs of rows are also added to the scores.
    """

    def __init__(self, spec: ModelSpec, *, wide: bool) -> None:
        super().__init__(spec)
        self.adds_pairs = wide
        self.num_inputs = spec.num_fields * spec.dim + self.normalizer.num_outputs

    def add_towers(self, num_inputs: int, hidden: Sequence[int]) -> None:
        """Call it last in __init__: a tower for each label, of these hidden layers."""
        sizes = [num_inputs, *check_layer_sizes("tower", hidden), 1]
        self.towers = nn.ModuleList(perceptron(sizes, last_is_linear=True) for _ in self.spec.labels)

    def tower_inputs(self, inputs_NI: Tensor) -> list[Tensor]:
        """Return the inputs of each label's tower, (N, H)."""
        raise NotImplementedError

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return chain.from_iterable(tower[-1].parameters() for tower in self.towers)  # type: ignore[index]

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        inputs_NI = torch.cat([fields_NED.flatten(1), dense_NX], dim=1)
        towers = zip(self.towers, self.tower_inputs(inputs_NI), strict=True)
        return torch.cat([tower(inputs_NH) for tower, inputs_NH in towers], dim=1).float()

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        scores_NL = self.deep_scores(fields_NED, dense_NX)
        if not self.adds_pairs:
            return scores_NL
        sum_ND = fields_NED.sum(dim=1)
        pairs_N = 0.5 * (sum_ND.square() - fields_NED.square().sum(dim=1)).sum(dim=1)
        return scores_NL + self.first_order(fields_NED) + self.pair_scale * pairs_N[:, None]


class MixtureGate(nn.Module):
    """Mixes experts' outputs by the softmax of a linear map of the gate's inputs."""

    def __init__(self, num_inputs: int, num_experts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_experts, bias=False)

    def forward(self, inputs_NI: Tensor, experts_NKH: Tensor) -> Tensor:
        """Return the weighted sum of K experts' outputs, (N, H)."""
        shares_NK = self.linear(inputs_NI).softmax(dim=1)
        mixed_NH: Tensor = (shares_NK.unsqueeze(2) * experts_NKH).sum(dim=1)
        return mixed_NH


def experts(num_experts: int, num_inputs: int, hidden: Sequence[int]) -> nn.ModuleList:
    """Return perceptrons of these hidden layers, each ending in ReLU."""
    return nn.ModuleList(perceptron([num_inputs, *hidden], last_is_linear=False) for _ in range(num_experts))


def check_count(name: str, count: object, *, least: int = 1) -> int:
    """Return a number of parts from a model's options; ValueError if it is none."""
    if type(count) is not int or not least <= count <= 1024:
        raise ValueError(f"{name} must be a number from {least} to 1024, not {count!r}")
    return count


def check_expert(hidden: object) -> list[int]:
    """Return the layers of an expert; ValueError if there are none."""
    if not (sizes := check_layer_sizes("expert", hidden)):
        raise ValueError("expert must have at least one layer, such as [64]")
    return sizes


class SharedBottom(MultitaskModel):
    """Shared bottom (Caruana 1997): one perceptron for all labels, and a tower for each.

    `bottom` and `tower` are hidden layers: of what labels share, and of what each has alone.
    """

    def __init__(
        self, spec: ModelSpec, *, bottom: Sequence[int] = (128,), tower: Sequence[int] = (), wide: bool = True
    ) -> None:
        super().__init__(spec, wide=wide)
        sizes = [self.num_inputs, *check_layer_sizes("bottom", bottom)]
        self.bottom = perceptron(sizes, last_is_linear=False)
        self.add_towers(sizes[-1], tower)

    def tower_inputs(self, inputs_NI: Tensor) -> list[Tensor]:
        return [self.bottom(inputs_NI)] * self.spec.num_labels


class MMoE(MultitaskModel):
    """MMoE (Ma et al. 2018, "Modeling task relationships in multi-task learning with multi-gate mixture-of-experts").

    All labels share the experts; each label mixes them by a softmax gate of its own, so labels that disagree can use
    different ones.

    `expert` and `tower` are hidden layers: of each of the `num_experts` experts, and of each label's tower.
    """

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


class PLE(MultitaskModel):
    """PLE (Tang et al. 2020, "Progressive layered extraction"): levels of shared experts and of experts of one label.

    A label's gate mixes its own experts and the shared ones, never those of other labels, so labels that disagree
    disturb each other less. Between levels a gate more mixes all experts into what the next level's shared experts see.

    `num_specific` experts of each label and `num_shared` for all, in each of `num_levels`; one level is CGC.

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
