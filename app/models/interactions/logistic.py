"""Logistic regression: one weight per id and label, and one per dense feature and label."""

# N samples, E fields, D dimension, X normalized dense features
from torch import Tensor

from springtide.app.models.calibrated_model import CalibratedModel, ZeroLinear
from springtide.app.models.interface import ModelSpec


class Logistic(CalibratedModel):
    """Uses the first elements of every row, one per label: `dim = 1` is enough for one label."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.linear = ZeroLinear(self.normalizer.num_outputs, spec.num_labels)

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        scores_NL: Tensor = self.linear(dense_NX)
        return scores_NL if self.is_offset else self.first_order(fields_NED) + scores_NL.float()
