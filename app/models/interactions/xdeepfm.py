"""xDeepFM (Lian et al. 2018): a compressed interaction network (CIN) over the vectors of fields, and a perceptron."""

# N samples, E fields, D dimension, X normalized dense features, V vectors (of fields and dense features), M maps
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import DenseVectors, FieldProjection, ZeroLinear, check_layer_sizes, perceptron


class CompressedInteraction(nn.Module):
    """Map m of a layer is a weighted sum of the elementwise products of each map before it with each first vector."""

    def __init__(self, num_vectors: int, maps: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(before * num_vectors, after, bias=False) for before, after in pairwise([num_vectors, *maps])
        )

    def forward(self, vectors_NVD: Tensor) -> Tensor:
        """Return the maps of all layers, each summed over its dimension: (N, M of all layers)."""
        first_NDV = vectors_NVD.transpose(1, 2)
        x_NDM, sums = first_NDV, []
        for layer in self.layers:
            # (N, D, M * V), so that the sum over pairs is one matrix product
            x_NDM = layer((x_NDM.unsqueeze(3) * first_NDV.unsqueeze(2)).flatten(2))
            sums.append(x_NDM.sum(dim=1))
        return torch.cat(sums, dim=1)


class XDeepFM(CalibratedModel):
    """`maps`: feature maps of each layer of the CIN; `hidden`: the perceptron's layers.

    Dense features have a vector each, as fields do. A layer of the CIN holds D * maps * vectors products a sample.
    """

    def __init__(self, spec: ModelSpec, *, maps: Sequence[int] = (16, 16), hidden: Sequence[int] = (128,)) -> None:
        super().__init__(spec)
        num_normalized, num_vectors = self.normalizer.num_outputs, spec.num_fields + spec.num_dense
        map_sizes, sizes = check_layer_sizes("maps", maps), check_layer_sizes("hidden", hidden)
        if not map_sizes:
            raise ValueError("maps must have at least one layer, such as [16, 16]")
        self.project = FieldProjection(spec)
        self.dense_vectors = DenseVectors(spec.num_dense, spec.dim)
        self.cin = CompressedInteraction(num_vectors, map_sizes)
        self.linear = ZeroLinear(num_normalized, spec.num_labels)
        num_inputs = spec.num_fields * spec.dim + num_normalized
        self.deep = perceptron([num_inputs, *sizes], last_is_linear=False)
        self.last = nn.Linear(sum(map_sizes) + (sizes[-1] if sizes else num_inputs), spec.num_labels)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.last.parameters()

    def drop_wide_scores(self) -> None:
        del self.linear

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        vectors_NVD = torch.cat([self.project(fields_NED), self.dense_vectors(dense_NX)], dim=1)
        maps_NM = self.cin(vectors_NVD)
        deep = self.deep(torch.cat([fields_NED.flatten(1), dense_NX], dim=1))
        scores_NL: Tensor = self.last(torch.cat([maps_NM, deep.to(maps_NM.dtype)], dim=1)).float()
        return scores_NL

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        linear_NL: Tensor = self.linear(dense_NX)
        return self.deep_scores(fields_NED, dense_NX) + self.first_order(fields_NED) + linear_NL.float()
