"""First-order weights beside a perceptron over the same rows, with a factorization machine or without."""

# N samples, E fields, D dimension, X normalized dense features
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import FieldProjection, ZeroLinear, check_layer_sizes, perceptron


class WideAndDeep(CalibratedModel):
    """Wide & Deep (Cheng et al. 2016): first-order weights, and a perceptron over the same rows.

    `hidden` are the perceptron's layers; its inputs are all rows and the normalized dense features.

    The paper's crossed features are those of the wide part ([model] wide).
    """

    def __init__(self, spec: ModelSpec, *, hidden: Sequence[int] = (128,)) -> None:
        super().__init__(spec)
        num_normalized = self.normalizer.num_outputs
        self.linear = ZeroLinear(num_normalized, spec.num_labels)
        sizes = [spec.num_fields * spec.dim + num_normalized, *check_layer_sizes("hidden", hidden), spec.num_labels]
        self.deep = perceptron(sizes, last_is_linear=True)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.deep[-1].parameters()

    def drop_wide_scores(self) -> None:
        del self.linear

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        deep_NL: Tensor = self.deep(torch.cat([fields_NED.flatten(1), dense_NX], dim=1))
        return deep_NL

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        linear_NL: Tensor = self.linear(dense_NX)
        wide_NL = self.first_order(fields_NED) + linear_NL.float()
        return wide_NL + self.deep_scores(fields_NED, dense_NX).float()


class DeepFM(CalibratedModel):
    """DeepFM (Guo et al. 2017): first-order weights, a factorization machine and a perceptron over the same rows.

    `hidden` are the perceptron's layers; its inputs are all rows and the normalized dense features.
    """

    def __init__(self, spec: ModelSpec, *, hidden: Sequence[int] = (128,)) -> None:
        super().__init__(spec)
        num_normalized = self.normalizer.num_outputs
        self.linear = ZeroLinear(num_normalized, spec.num_labels)
        sizes = [spec.num_fields * spec.dim + num_normalized, *check_layer_sizes("hidden", hidden), spec.num_labels]
        self.project = FieldProjection(spec)
        self.deep = perceptron(sizes, last_is_linear=True)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.deep[-1].parameters()

    def drop_wide_scores(self) -> None:
        del self.linear, self.project

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        deep_NL: Tensor = self.deep(torch.cat([fields_NED.flatten(1), dense_NX], dim=1))
        return deep_NL

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        vectors_NED = self.project(fields_NED)
        sum_ND = vectors_NED.sum(dim=1)
        pairs_N = 0.5 * (sum_ND.square() - vectors_NED.square().sum(dim=1)).sum(dim=1)
        linear_NL: Tensor = self.linear(dense_NX)
        wide_NL = self.first_order(fields_NED) + self.pair_scale * pairs_N[:, None]
        scores_NL: Tensor = wide_NL + linear_NL.float() + self.deep_scores(fields_NED, dense_NX).float()
        return scores_NL
