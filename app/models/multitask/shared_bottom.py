"""Shared bottom (Caruana 1997): one perceptron for all labels, and a tower for each."""

# N samples, I inputs of the net
from collections.abc import Sequence

from torch import Tensor

from springtide.app.models.calibrated_model import check_layer_sizes, perceptron
from springtide.app.models.interface import ModelSpec
from springtide.app.models.multitask.towers import MultitaskModel


class SharedBottom(MultitaskModel):
    """`bottom` and `tower` are hidden layers: of what labels share, and of what each has alone."""

    def __init__(
        self, spec: ModelSpec, *, bottom: Sequence[int] = (128,), tower: Sequence[int] = (), wide: bool = True
    ) -> None:
        super().__init__(spec, wide=wide)
        sizes = [self.num_inputs, *check_layer_sizes("bottom", bottom)]
        self.bottom = perceptron(sizes, last_is_linear=False)
        self.add_towers(sizes[-1], tower)

    def tower_inputs(self, inputs_NI: Tensor) -> list[Tensor]:
        return [self.bottom(inputs_NI)] * self.spec.num_labels
