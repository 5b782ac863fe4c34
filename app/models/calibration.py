"""Turns a net's scores into logits: adds the base rate so far, and scales the scores by how well they fit the labels.

Starting at the base rate, an untrained net loses nothing on rare clicks. Scores that are too large are scaled
down until the net has learned (Platt 1999, as a running Newton step).
"""

# N samples, L labels
import torch
from torch import Tensor, nn

PRIOR_COUNT, PRIOR_CLICKS = 4.0, 1.0
PRIOR_INFORMATION = 100.0  # evidence needed to move trust away from 1
RATE_MEMORY = 1e6  # samples; older ones fade
INFORMATION_MEMORY = 1e4
MIN_TRUST, MAX_TRUST = 0.05, 1.5


class Calibration(nn.Module):
    """logits = logit(base rate) + trust * (bias + scores). Rate and trust are statistics, the bias is a parameter."""

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
        weights_NL = torch.where(torch.isnan(labels_NL), 0.0, weights_N[:, None])
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
