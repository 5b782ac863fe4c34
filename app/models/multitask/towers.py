"""Towers of the nets for several labels: one for each label, on top of what they have in common."""

# N samples, E fields, D dimension, X normalized dense features, I inputs of the net, H inputs of a tower, L labels
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel, check_layer_sizes, perceptron
from springtide.app.models.interface import ModelSpec


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
