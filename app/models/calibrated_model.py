"""The base of the built-in nets: normalized dense features, first-order weights in the rows, calibrated scores.

Beside a wide part a net gives its `deep_scores` alone, 0 at first: all others are the wide part's.
"""

# N samples, E fields (C + P + S), D dimension, F dense features, X normalized dense features, L labels
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from springtide.app.models.interface import DenseModel, ModelSpec
from springtide.app.models.layers import DenseFeatureNormalizer

VALUE_MEMORY = 1e6  # samples; older ones fade
MIN_SCALE = 1e-6
# Once so many samples are known, a value counts as at most so many standard deviations from the mean: an absurd one,
# such as nanoseconds sent for seconds, would else be remembered for a million samples.
KNOWN_SAMPLES, MOST_DEVIATIONS = 1000.0, 100.0


class ValueScale(nn.Module):
    """Mean and variance so far of labels that are values, by which a net's scores become values.

    A score of 0 is the mean, one of 1 a standard deviation above it, so a net learns seconds as fast as probabilities.
    Running statistics of what a label's link makes of it; those of other labels are not used.
    """

    is_log_L: Tensor
    is_value_L: Tensor
    mean_L: Tensor
    variance_L: Tensor
    count_L: Tensor

    def __init__(self, links: tuple[str, ...]) -> None:
        """`links`: of each label, "logit" for a probability."""
        super().__init__()
        self.register_buffer("is_log_L", torch.tensor([link == "log1p" for link in links]), persistent=False)
        self.register_buffer("is_value_L", torch.tensor([link != "logit" for link in links]), persistent=False)
        self.register_buffer("mean_L", torch.zeros(len(links)))
        self.register_buffer("variance_L", torch.zeros(len(links)))
        self.register_buffer("count_L", torch.zeros(len(links)))

    def forward(self, scores_NL: Tensor, logits_NL: Tensor) -> Tensor:
        """Return the logits, with outputs made of scores where a label is a value."""
        outputs_NL = self.mean_L + torch.sqrt(self.variance_L).clamp(min=MIN_SCALE) * scores_NL.float()
        return torch.where(self.is_value_L, outputs_NL, logits_NL)

    def scale_L(self) -> Tensor:
        """Return the standard deviation of each label so far; 0 where nothing is known of it."""
        return torch.where(self.count_L > 0, torch.sqrt(self.variance_L).clamp(min=MIN_SCALE), 0.0)

    @torch.no_grad()
    def observe(self, labels_NL: Tensor, weights_N: Tensor) -> None:
        """Count a batch's labels; NaN is masked."""
        targets_NL = targets_of(self.is_log_L, labels_NL)
        weights_NL = torch.where(torch.isnan(labels_NL) | ~self.is_value_L, 0.0, label_weights(weights_N))
        targets_NL = torch.where(weights_NL > 0, targets_NL, 0.0)
        is_known_L = (self.count_L >= KNOWN_SAMPLES) & (self.variance_L > 0)
        most_L = torch.where(is_known_L, MOST_DEVIATIONS * torch.sqrt(self.variance_L), torch.inf)
        targets_NL = targets_NL.clamp(self.mean_L - most_L, self.mean_L + most_L)
        new_L = weights_NL.sum(0)
        mean_L = (weights_NL * targets_NL).sum(0) / new_L.clamp(min=1e-12)
        variance_L = (weights_NL * (targets_NL - mean_L).square()).sum(0) / new_L.clamp(min=1e-12)
        share_L = new_L / (self.count_L + new_L).clamp(min=1e-12)
        apart_L = mean_L - self.mean_L
        # Chan et al. 1979: the variance of both parts, and of their means
        self.variance_L.add_(share_L * (variance_L - self.variance_L + (1 - share_L) * apart_L.square()))
        self.mean_L.add_(share_L * apart_L)
        self.count_L.add_(new_L).clamp_(max=VALUE_MEMORY)


def targets_of(is_log_L: Tensor, labels_NL: Tensor) -> Tensor:
    """Return what the outputs of value labels should be: logarithms of 1 and the label where its link is log1p."""
    return torch.where(is_log_L, torch.log1p(torch.where(is_log_L, labels_NL, 0.0)), labels_NL)


def label_weights(weights: Tensor) -> Tensor:
    """Return weights (N, 1) or (N, L) of those of samples, (N), or of each label of them, (N, L)."""
    return weights if weights.ndim == 2 else weights[:, None]


PRIOR_COUNT, PRIOR_CLICKS = 4.0, 1.0
PRIOR_INFORMATION = 100.0  # evidence needed to move trust away from 1
RATE_MEMORY = 1e6  # samples; older ones fade
INFORMATION_MEMORY = 1e4
MIN_TRUST, MAX_TRUST = 0.05, 1.5


class Calibration(nn.Module):
    """logits = logit(base rate) + trust * (bias + scores). Rate and trust are statistics, the bias is a parameter.

    Starting at the base rate, an untrained net loses nothing on rare clicks. Scores that are too large are scaled down
    until the net has learned (Platt 1999, as a running Newton step).
    """

    rate_L: Tensor
    count_L: Tensor
    trust_L: Tensor
    information_L: Tensor

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.bias_L = nn.Parameter(torch.zeros(num_labels))
        self.register_buffer("rate_L", torch.full((num_labels,), PRIOR_CLICKS / PRIOR_COUNT))
        self.register_buffer("count_L", torch.full((num_labels,), PRIOR_COUNT))
        self.register_buffer("trust_L", torch.ones(num_labels))
        self.register_buffer("information_L", torch.full((num_labels,), PRIOR_INFORMATION))

    def forward(self, scores_NL: Tensor) -> Tensor:
        return torch.logit(self.rate_L) + self.trust_L * (self.bias_L + scores_NL.float())

    @torch.no_grad()
    def observe(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        """Count a batch that `forward` has scored; NaN labels are ignored."""
        weights_NL = torch.where(torch.isnan(labels_NL), 0.0, label_weights(weights_N))
        labels_NL = torch.nan_to_num(labels_NL)
        scores_NL = (logits_NL - torch.logit(self.rate_L)) / self.trust_L
        probabilities_NL = torch.sigmoid(logits_NL)
        slope_L = (weights_NL * (probabilities_NL - labels_NL) * scores_NL).sum(0)
        self.information_L.add_((weights_NL * probabilities_NL * (1 - probabilities_NL) * scores_NL.square()).sum(0))
        self.trust_L.sub_(slope_L / self.information_L).clamp_(MIN_TRUST, MAX_TRUST)
        self.information_L.clamp_(max=INFORMATION_MEMORY)

        new_L = weights_NL.sum(0)
        mean_L = (weights_NL * labels_NL).sum(0) / new_L.clamp(min=1e-12)
        self.count_L.add_(new_L)
        # with one class alone the rate must not reach 0 or 1, where the logit is infinite
        self.rate_L.add_((mean_L - self.rate_L) * new_L / self.count_L).clamp_(1e-6, 1 - 1e-6)
        self.count_L.clamp_(max=RATE_MEMORY)


def join_fields(categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor) -> Tensor:
    """Return one vector per field, (N, C + P + S, D): of a sequence the mean of its rows, zeros if it is empty."""
    if sequence_NSTD.shape[1] == 0:
        if pooled_NPD.shape[1] == 0:
            return categorical_NCD
        return torch.cat([categorical_NCD, pooled_NPD], dim=1)
    means_NSD = sequence_NSTD.sum(dim=2) / length_NS.clamp(min=1).unsqueeze(-1)
    return torch.cat([categorical_NCD, pooled_NPD, means_NSD], dim=1)


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
