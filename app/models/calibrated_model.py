"""What the built-in models share: normalized dense features, first-order weights in the rows, calibrated scores."""

# N samples, E fields (C + P + S), D dimension, X normalized dense features, L labels
import itertools

import torch
from torch import Tensor, nn

from springtide.app.models.calibration import Calibration
from springtide.app.models.dense_features import DenseFeatureNormalizer
from springtide.app.models.interface import DenseModel, ModelSpec, join_fields
from springtide.app.models.value_scale import ValueScale


class CalibratedModel(DenseModel):
    """A subclass turns fields and normalized dense features into scores."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.normalizer = DenseFeatureNormalizer(spec.num_dense)
        self.calibration = Calibration(spec.num_labels)
        self.values = ValueScale(spec.links) if spec.links else None
        # all fields learn from the same label: each takes a smaller part, so that their sum does not overshoot
        self.first_order_scale = (4.0 / max(1, spec.num_fields)) ** 0.5
        self.pair_scale = (6.0 / max(1, spec.num_fields)) ** 0.5
        self.is_offset = False

    def fields(self, categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor) -> Tensor:
        """Return one vector per field, (N, E, D)."""
        return join_fields(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS)

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        """Return scores (N, L), or (N, 1) for all labels alike; zero stands for the base rate."""
        raise NotImplementedError

    def forward(
        self,
        categorical_NCD: Tensor,
        pooled_NPD: Tensor,
        sequence_NSTD: Tensor,
        length_NS: Tensor,
        dense_NF: Tensor,
    ) -> Tensor:
        fields_NED = self.fields(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS)
        scores_NL = self.scores(fields_NED, self.normalizer(dense_NF))
        logits_NL = self.logits(scores_NL)
        if self.values is None:
            return logits_NL
        if self.is_offset:  # the wide part adds nothing to a value
            scores_NL = scores_NL.float() + self.first_order(fields_NED)
        outputs_NL: Tensor = self.values(scores_NL, logits_NL)
        return outputs_NL

    def logits(self, scores_NL: Tensor) -> Tensor:
        """Turn scores into logits, or into the wide part's offset, which is 0 where the deep part says nothing."""
        logits_NL: Tensor = scores_NL.float() if self.is_offset else self.calibration(scores_NL)
        return logits_NL

    def become_offset(self) -> None:
        """From now on give the deep part's scores alone, zero at first: the wide part adds all others to them."""
        self.is_offset = True
        del self.calibration
        if (last := self.last_layer()) is not None:
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def last_layer(self) -> nn.Linear | None:
        """Return the layer whose outputs are the deep part's scores; None if there is none."""
        return None

    def observe_inputs(self, dense_NF: Tensor) -> None:
        self.normalizer.observe(dense_NF)

    def label_scales(self) -> Tensor | None:
        return None if self.values is None else self.values.scale_L()

    def observe_labels(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        if self.values is not None:
            self.values.observe(labels_NL, weights_N)
            labels_NL = torch.where(self.values.is_value_L, torch.nan, labels_NL)
        if not self.is_offset:
            self.calibrate(logits_NL, labels_NL, weights_N)

    def calibrate(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        """Count labels that are probabilities; those that are values are NaN."""
        self.calibration.observe(logits_NL, labels_NL, weights_N)

    def first_order(self, fields_NED: Tensor) -> Tensor:
        """Return the sum of each label's first-order weights: element l of every row, in float32."""
        sums_ND = fields_NED.sum(dim=1)
        num_labels, dim = self.spec.num_labels, self.spec.dim
        if num_labels > dim:
            sums_ND = sums_ND.repeat(1, -(-num_labels // dim))
        weights_NL: Tensor = self.first_order_scale * sums_ND[:, :num_labels]
        return weights_NL


def perceptron(sizes: list[int], *, last_is_linear: bool) -> nn.Sequential:
    """Return linear layers of these sizes, each but the last followed by ReLU, the last one unless `last_is_linear`."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if last_is_linear else layers))


class ZeroLinear(nn.Module):
    """A linear map without bias that starts at zero. The number of inputs may be 0."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_out, num_in))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def check_layer_sizes(name: str, sizes: object) -> list[int]:
    """Return the sizes of hidden layers from a model's options; ValueError if they are not sizes."""
    good = isinstance(sizes, (list, tuple)) and all(type(size) is int and 1 <= size <= 65536 for size in sizes)
    if not good:
        raise ValueError(f"{name} must be a list of layer sizes such as [128, 64], not {sizes!r}")
    return list(sizes)  # type: ignore[call-overload, no-any-return]
