"""Product-based neural networks (Qu et al. 2016): products of vectors go into the perceptron beside the vectors."""

# N samples, E fields, D dimension, X normalized dense features, I pairs of fields
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interactions.dot_interaction import dot_interaction, pair_places
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import FieldProjection, check_choice, check_layer_sizes, perceptron


class PNN(CalibratedModel):
    """`product`: "inner", the dot product of each pair of fields; "outer", the outer product of all fields' sum.

    The outer product of the sum is that of the paper's section on complexity: the sum of all pairs' outer products,
    D * D numbers. `hidden` are the perceptron's layers.
    """

    pairs_I: Tensor

    def __init__(self, spec: ModelSpec, *, product: str = "inner", hidden: Sequence[int] = (128,)) -> None:
        super().__init__(spec)
        num_fields, dim = spec.num_fields, spec.dim
        self.is_inner = check_choice("product", product, ("inner", "outer")) == "inner"
        self.project = FieldProjection(spec)
        self.register_buffer("pairs_I", pair_places(num_fields), persistent=False)
        num_products = num_fields * (num_fields - 1) // 2 if self.is_inner else dim * dim
        num_inputs = num_fields * dim + self.normalizer.num_outputs + num_products
        self.deep = perceptron([num_inputs, *check_layer_sizes("hidden", hidden), spec.num_labels], last_is_linear=True)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.deep[-1].parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        vectors_NED = self.project(fields_NED)
        if self.is_inner:
            products = dot_interaction(vectors_NED, self.pairs_I)
        else:
            sum_ND = vectors_NED.sum(dim=1)
            products = (sum_ND.unsqueeze(2) * sum_ND.unsqueeze(1)).flatten(1)
        deep_NL: Tensor = self.deep(torch.cat([fields_NED.flatten(1), dense_NX, products], dim=1)).float()
        return deep_NL
