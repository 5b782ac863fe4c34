"""Labels that are values: their mean and variance so far, by which a net's scores become values.

A score of 0 is the mean, one of 1 a standard deviation above it, so a net learns seconds as fast as probabilities.
"""

# N samples, L labels
import torch
from torch import Tensor, nn

MEMORY = 1e6  # samples; older ones fade
MIN_SCALE = 1e-6
# Once so many samples are known, a value counts as at most so many standard deviations from the mean: an absurd one,
# such as nanoseconds sent for seconds, would else be remembered for a million samples.
KNOWN_SAMPLES, MOST_DEVIATIONS = 1000.0, 100.0


class ValueScale(nn.Module):
    """Running statistics of what a label's link makes of it; those of other labels are not used."""

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
        weights_NL = torch.where(torch.isnan(labels_NL) | ~self.is_value_L, 0.0, weights_N[:, None])
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
        self.count_L.add_(new_L).clamp_(max=MEMORY)


def targets_of(is_log_L: Tensor, labels_NL: Tensor) -> Tensor:
    """Return what the outputs of value labels should be: logarithms of 1 and the label where its link is log1p."""
    return torch.where(is_log_L, torch.log1p(torch.where(is_log_L, labels_NL, 0.0)), labels_NL)
