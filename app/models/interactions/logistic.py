"""Logistic regression: one weight per id and label, and one per dense feature and label."""

# N samples, E fields, D dimension, X normalized dense features
from collections.abc import Iterator

from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel, ZeroLinear
from springtide.app.models.interface import ModelSpec


class Logistic(CalibratedModel):
    """Uses the first elements of every row, one per label: `dim = 1` is enough for one label."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.linear = ZeroLinear(self.normalizer.num_outputs, spec.num_labels)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.linear.parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        scores_NL: Tensor = self.linear(dense_NX)
        return scores_NL.float()
