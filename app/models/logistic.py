"""Logistic regression: a weight an id and label, and a weight a number. Source: the linear learner of any ad system."""

# N samples, E fields, D dimension, X transformed numbers
from torch import Tensor

from app.models.calibrated import CalibratedModel, ZeroLinear
from app.models.interface import ModelSpec


class Logistic(CalibratedModel):
    """Uses the first elements of every row, one a label: `dim = 1` is enough for one label."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.linear = ZeroLinear(self.numbers.num_outputs, spec.num_labels)

    def scores(self, fields_NED: Tensor, numbers_NX: Tensor) -> Tensor:
        scores_NL: Tensor = self.linear(numbers_NX)
        return self.first_order(fields_NED) + scores_NL.float()
