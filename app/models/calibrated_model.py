"""The base of the built-in nets: normalized dense features, first-order weights in the rows, calibrated scores.

Beside a wide part a net gives its `deep_scores` alone, 0 at first: all others are the wide part's.
"""

# N samples, E fields (C + P + S), D dimension, X normalized dense features, L labels
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from springtide.app.models.calibration import Calibration
from springtide.app.models.dense_features import DenseFeatureNormalizer
from springtide.app.models.interface import DenseModel, ModelSpec, join_fields
from springtide.app.models.value_scale import ValueScale


class CalibratedModel(DenseModel):
    """A subclass turns fields and normalized dense features into `deep_scores`, and names its `last_parameters`.

    One that adds more than first-order weights to them, which a wide part adds too, overrides `scores`.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("deep_scores", "last_parameters"):
            if getattr(cls, name) is getattr(CalibratedModel, name):
                raise TypeError(f"the net {cls.__name__} must define {name}")

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.normalizer = DenseFeatureNormalizer(spec.num_dense)
        self.calibration = Calibration(spec.num_labels)
        self.values = ValueScale(spec.links) if spec.links else None
        # all fields learn from the same label: each takes a smaller part, so that their sum does not overshoot
        self.first_order_scale: float = (4.0 / max(1, spec.num_fields)) ** 0.5
        self.pair_scale: float = (6.0 / max(1, spec.num_fields)) ** 0.5
        self.has_wide_part = False

    def fields(self, categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor) -> Tensor:
        """Return one vector per field, (N, E, D)."""
        return join_fields(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS)

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        """Return scores (N, L), or (N, 1) for all labels alike, without any that a wide part adds."""
        raise NotImplementedError

    def last_parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters that make `deep_scores` 0 where they are 0."""
        raise NotImplementedError

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        """Return the scores without a wide part, as `deep_scores`; zero stands for the base rate."""
        return self.first_order(fields_NED) + self.deep_scores(fields_NED, dense_NX)

    def forward(
        self,
        categorical_NCD: Tensor,
        pooled_NPD: Tensor,
        sequence_NSTD: Tensor,
        length_NS: Tensor,
        dense_NF: Tensor,
    ) -> Tensor:
        fields_NED = self.fields(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS)
        scores = self.deep_scores if self.has_wide_part else self.scores
        scores_NL = scores(fields_NED, self.normalizer(dense_NF))
        logits_NL = self.logits(scores_NL)
        if self.values is None:
            return logits_NL
        if self.has_wide_part:  # the wide part adds nothing to a value
            scores_NL = scores_NL.float() + self.first_order(fields_NED)
        outputs_NL: Tensor = self.values(scores_NL, logits_NL)
        return outputs_NL

    def logits(self, scores_NL: Tensor) -> Tensor:
        """Turn scores into logits, or into the wide part's offset, which is 0 where the deep part says nothing."""
        logits_NL: Tensor = scores_NL.float() if self.has_wide_part else self.calibration(scores_NL)
        return logits_NL

    def use_wide_part(self) -> None:
        """From now on give the deep scores alone, zero at first: the wide part adds all others to them.

        ValueError if they are not zero.
        """
        self.has_wide_part = True
        self.drop_calibration()
        self.drop_wide_scores()
        for parameter in self.last_parameters():
            nn.init.zeros_(parameter)
        draw = torch.Generator().manual_seed(0)
        fields_NED = torch.randn(2, self.spec.num_fields, self.spec.dim, generator=draw)
        with torch.no_grad():
            scores = self.deep_scores(fields_NED, torch.randn(2, self.normalizer.num_outputs, generator=draw))
        if scores.any():
            raise ValueError(
                f"the deep_scores of {type(self).__name__} do not begin at 0 beside a wide part: last_parameters must "
                "name all parameters of what makes them, and first-order weights belong into scores"
            )

    def drop_calibration(self) -> None:
        """Remove the base rates: the wide part has its own."""
        del self.calibration

    def drop_wide_scores(self) -> None:
        """Remove what only `scores` uses, if anything."""

    def observe_inputs(self, dense_NF: Tensor) -> None:
        self.normalizer.observe(dense_NF)

    def label_scales(self) -> Tensor | None:
        return None if self.values is None else self.values.scale_L()

    def observe_labels(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        if self.values is not None:
            self.values.observe(labels_NL, weights_N)
            labels_NL = torch.where(self.values.is_value_L, torch.nan, labels_NL)
        if not self.has_wide_part:
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
