"""Learned positions, counted from the newest element, and the target as one more element after it."""

# N samples, T elements, D dimension
import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """A learned vector for each place: 0 for the newest element, so that an element's place does not depend on padding.

    Starts at zero: what the rows say comes first.
    """

    def __init__(self, num_places: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_places, dim))

    def forward(self, length_N: Tensor, num_elements: int) -> Tensor:
        """Return (N, T, D) for T elements in a row, of which each sample's first `length` exist."""
        ages_NT = length_N[:, None] - 1 - torch.arange(num_elements, device=length_N.device)
        return nn.functional.embedding(ages_NT.clamp(0, self.weight.shape[0] - 1), self.weight)


def append(rows_NTD: Tensor, length_N: Tensor, last_ND: Tensor) -> Tensor:
    """Return (N, T + 1, D): after each sample's elements one more."""
    longer_NTD = torch.cat([rows_NTD, torch.zeros_like(last_ND).unsqueeze(1)], dim=1)
    is_last_NT = torch.arange(longer_NTD.shape[1], device=length_N.device) == length_N[:, None]
    return torch.where(is_last_NT.unsqueeze(-1), last_ND.unsqueeze(1), longer_NTD)


def element(states_NTD: Tensor, place_N: Tensor) -> Tensor:
    """Return one element of each sample, (N, 1, D)."""
    return states_NTD.gather(1, place_N[:, None, None].expand(-1, 1, states_NTD.shape[2]))
