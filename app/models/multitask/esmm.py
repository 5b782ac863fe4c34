"""ESMM (Ma et al. 2018, "Entire space multi-task model"): a conversion's probability is that of click times that of
conversion after a click.

So the second tower learns from all samples what happens after a click, without the bias of learning from clicks alone.
The label of a conversion is 0 where there was no click.
"""

# N samples, I inputs of the net, L labels
from collections.abc import Sequence

import torch
from torch import Tensor

from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_layer_sizes, perceptron
from springtide.app.models.multitask.mixtures import MultitaskModel

MAX_CONDITIONAL = 15.0  # of a conditional logit that is computed from two logits


class ESMM(MultitaskModel):
    """`click` and `conversion` name the two labels, by default the first and the second; any other has its own tower.

    `tower`: the hidden layers of each label's tower. With `shared`, hidden layers, the towers stand on one perceptron.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        click: str | None = None,
        conversion: str | None = None,
        tower: Sequence[int] = (128,),
        shared: Sequence[int] = (),
        wide: bool = True,
    ) -> None:
        super().__init__(spec, wide=wide)
        if spec.num_labels < 2:
            raise ValueError('it needs two labels, such as [schema] labels = ["click", "order"]')
        self.click = 0 if click is None else spec.label_index(click)
        self.conversion = 1 if conversion is None else spec.label_index(conversion)
        if spec.links and {spec.links[self.click], spec.links[self.conversion]} != {"logit"}:
            raise ValueError("click and conversion must be labels from 0 to 1: their losses are of values")
        if self.click == self.conversion:
            raise ValueError(f"click and conversion must be two labels, not {spec.labels[self.click]!r} twice")
        sizes = [self.num_inputs, *check_layer_sizes("shared", shared)]
        self.shared = perceptron(sizes, last_is_linear=False)
        self.add_towers(sizes[-1], tower)

    def tower_inputs(self, inputs_NI: Tensor) -> list[Tensor]:
        return [self.shared(inputs_NI)] * self.spec.num_labels

    def drop_calibration(self) -> None:
        """Keep the base rates: an offset of the wide part is how far the product has moved from that of the rates."""
        self.calibration.bias_L.requires_grad_(False)

    def logits(self, scores_NL: Tensor) -> Tensor:
        """Turn scores, of the conversion after a click, into logits; as an offset both are 0 where scores are."""
        if not self.has_wide_part:
            return self._entire_space(self.calibration(scores_NL))
        rates_L = torch.logit(self.calibration.rate_L)
        offsets_NL = self._entire_space(rates_L + scores_NL.float()) - self._entire_space(rates_L.unsqueeze(0))
        others = [scores_NL[:, n] if n != self.conversion else offsets_NL[:, n] for n in range(self.spec.num_labels)]
        return torch.stack(others, dim=1).float()

    def observe_labels(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        super().observe_labels(logits_NL, labels_NL, weights_N)
        if self.has_wide_part:
            self.calibrate(logits_NL, labels_NL, weights_N)

    def calibrate(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        """Count the conversions of clicked samples only: their rate, and how well their scores fit."""
        clicked_N = labels_NL[:, self.click]
        labels_NL, logits_NL = labels_NL.clone(), logits_NL.clone()
        labels_NL[:, self.conversion] = torch.where(clicked_N > 0, labels_NL[:, self.conversion], torch.nan)
        logits_NL[:, self.conversion] = conditional_logit(logits_NL[:, self.click], logits_NL[:, self.conversion])
        self.calibration.observe(logits_NL, labels_NL, weights_N)

    def _entire_space(self, conditional_NL: Tensor) -> Tensor:
        """Replace the logit of the conversion after a click by that of click and conversion."""
        columns = list(conditional_NL.unbind(dim=1))
        columns[self.conversion] = product_logit(columns[self.click], columns[self.conversion])
        return torch.stack(columns, dim=1)


def product_logit(first_N: Tensor, second_N: Tensor) -> Tensor:
    """Return logit(sigmoid(first) * sigmoid(second)), exact also where one of them is near 0 or 1.

    1 / p = (1 + exp(-a)) (1 + exp(-b)), so the logit is -log(1 / p - 1) = -log(exp(-a) + exp(-b) + exp(-a - b)).
    """
    return -torch.logsumexp(torch.stack([-first_N, -second_N, -first_N - second_N]), dim=0)


def conditional_logit(first_N: Tensor, product_N: Tensor) -> Tensor:
    """Invert `product_logit`: return the second logit, within MAX_CONDITIONAL."""
    first_N, product_N = first_N.double().clamp(-300, 300), product_N.double().clamp(-300, 300)
    rest_N = (torch.exp(-product_N) - torch.exp(-first_N)) / (1 + torch.exp(-first_N))
    return -torch.log(rest_N.clamp(min=1e-300)).clamp(-MAX_CONDITIONAL, MAX_CONDITIONAL).float()
