"""Normalizes dense features: signed log1p, then running standardization; a missing value is 0 with an indicator."""

# N samples, F dense features
import torch
from torch import Tensor, nn

MEMORY = 1e6  # values; older ones fade, and float32 can still count
MAX_DEVIATIONS = 5.0  # standard deviations
VARIANCE_FLOOR = 1e-4  # a constant feature has no variance: else its rounding errors would become a signal


class DenseFeatureNormalizer(nn.Module):
    """From raw values (N, F), NaN where missing, to (N, 2F): the standardized values, then the missing indicators.

    `observe` updates the statistics (pairwise update of Chan, Golub and LeVeque 1979); `forward` only reads them. A
    feature without any value so far is 0, as in the wide part.
    """

    mean_F: Tensor
    variance_F: Tensor
    count_F: Tensor

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.num_outputs = 2 * num_dense
        self.register_buffer("mean_F", torch.zeros(num_dense))
        self.register_buffer("variance_F", torch.ones(num_dense))
        self.register_buffer("count_F", torch.zeros(num_dense))

    @torch.no_grad()
    def observe(self, dense_NF: Tensor) -> None:
        """Count a batch."""
        if dense_NF.numel() == 0:
            return
        known_NF = ~torch.isnan(dense_NF)
        log_NF = torch.where(known_NF, _signed_log(dense_NF), 0.0)
        new_F = known_NF.sum(0).float()
        mean_F = log_NF.sum(0) / new_F.clamp(min=1)
        variance_F = torch.where(known_NF, log_NF - mean_F, 0.0).square().sum(0) / new_F.clamp(min=1)
        total_F = (self.count_F + new_F).clamp(min=1)
        share_F = new_F / total_F  # 0 where the batch has no value: nothing changes then
        shift_F = mean_F - self.mean_F
        spread_F = (1 - share_F) * self.variance_F * (self.count_F > 0) + share_F * (
            variance_F + shift_F.square() * (1 - share_F)
        )
        self.variance_F.copy_(torch.where(new_F > 0, spread_F, self.variance_F))
        self.mean_F.add_(share_F * shift_F)
        self.count_F.copy_((self.count_F + new_F).clamp(max=MEMORY))

    def forward(self, dense_NF: Tensor) -> Tensor:
        missing_NF = torch.isnan(dense_NF)
        scale_F = torch.rsqrt(self.variance_F + VARIANCE_FLOOR)
        standard_NF = ((_signed_log(dense_NF) - self.mean_F) * scale_F).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        standard_NF = torch.where(missing_NF | (self.count_F == 0), 0.0, standard_NF)
        return torch.cat([standard_NF, missing_NF.float()], dim=1)


def _signed_log(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(x.abs())
