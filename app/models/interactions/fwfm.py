"""Field-weighted factorization machine (Pan et al. 2018): the product of each pair of fields has a weight."""

# N samples, E fields, D dimension, X normalized dense features, I pairs of fields, L labels
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel, ZeroLinear
from springtide.app.models.field_vectors import FieldProjection
from springtide.app.models.interactions.dot_interaction import dot_interaction, pair_places
from springtide.app.models.interface import ModelSpec


class FwFM(CalibratedModel):
    """A weight for each pair of fields and label, 0 at first beside a wide part; dense features are linear."""

    pairs_I: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.linear = ZeroLinear(self.normalizer.num_outputs, spec.num_labels)
        self.project = FieldProjection(spec)
        self.register_buffer("pairs_I", pair_places(spec.num_fields), persistent=False)
        self.weight_LI = nn.Parameter(torch.full((spec.num_labels, len(self.pairs_I)), self.pair_scale))

    def drop_wide_scores(self) -> None:
        del self.linear

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return iter([self.weight_LI])

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        products_NI = dot_interaction(self.project(fields_NED), self.pairs_I)
        return nn.functional.linear(products_NI, self.weight_LI).float()

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        linear_NL: Tensor = self.linear(dense_NX)
        return self.first_order(fields_NED) + linear_NL.float() + self.deep_scores(fields_NED, dense_NX)
