"""Logistic regression, and factorization machines that weigh or divide vectors by field."""

# N samples, E fields, D dimension, H numbers of a part (D // E), X normalized dense features, I pairs of fields,
# L labels
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interactions.dot_interaction import dot_interaction, pair_places
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import FieldProjection, ZeroLinear


class FwFM(CalibratedModel):
    """Field-weighted factorization machine (Pan et al. 2018): the product of each pair of fields has a weight.

    A weight for each pair of fields and label, 0 at first beside a wide part; dense features are linear.
    """

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


class FFM(CalibratedModel):
    """Field-aware factorization machine (Juan et al. 2016): an id has another vector for each field that it meets.

    A row is divided into one part for each field: its part e meets field e. Dense features are linear.

    So `[table] dim` is the number of fields times the numbers of a part, 4 for example; what is left over is unused.
    Beside a wide part each pair of fields has a weight for each label, 0 at first.
    """

    pairs_I: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.num_numbers = spec.dim // max(1, spec.num_fields)
        if self.num_numbers == 0:
            raise ValueError(
                f"ffm divides a row among the {spec.num_fields} fields: raise [table] dim from {spec.dim} to "
                f"{4 * spec.num_fields}, or to another multiple of {spec.num_fields}"
            )
        self.linear = ZeroLinear(self.normalizer.num_outputs, spec.num_labels)
        self.project = FieldProjection(spec)
        self.register_buffer("pairs_I", pair_places(spec.num_fields), persistent=False)

    def drop_wide_scores(self) -> None:
        del self.linear
        self.weight_LI = nn.Parameter(torch.zeros(self.spec.num_labels, len(self.pairs_I)))

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return iter([self.weight_LI])

    def products(self, fields_NED: Tensor) -> Tensor:
        """Return the dot product of each pair of fields, (N, I)."""
        num_fields, num_numbers = self.spec.num_fields, self.num_numbers
        used = self.project(fields_NED)[:, :, : num_fields * num_numbers]
        parts_NEEH = used.unflatten(2, (num_fields, num_numbers)) if num_fields else used.unsqueeze(3)
        products_NEE = (parts_NEEH * parts_NEEH.transpose(1, 2)).sum(dim=3)
        products_NI: Tensor = products_NEE.flatten(1).gather(1, self.pairs_I.expand(fields_NED.shape[0], -1))
        return products_NI

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        return nn.functional.linear(self.products(fields_NED), self.weight_LI).float()

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        pairs_N1 = self.products(fields_NED).float().sum(dim=1, keepdim=True)
        linear_NL: Tensor = self.linear(dense_NX)
        scores_NL: Tensor = self.first_order(fields_NED) + linear_NL.float() + self.pair_scale * pairs_N1
        return scores_NL


class Logistic(CalibratedModel):
    """Logistic regression: one weight per id and label, and one per dense feature and label.

    Uses the first elements of every row, one per label: `dim = 1` is enough for one label.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.linear = ZeroLinear(self.normalizer.num_outputs, spec.num_labels)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.linear.parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        scores_NL: Tensor = self.linear(dense_NX)
        return scores_NL.float()
