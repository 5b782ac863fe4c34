"""A block of attention and a perceptron, both with a residual connection and LayerNorm before them."""

# N samples, T elements, Q queries (T or 1), D dimension
import torch
from torch import Tensor, nn

from springtide.app.models.sequence.attention import MultiHeadAttention


class EncoderBlock(nn.Module):
    """Block of a transformer without dropout: a sample is learned once, so there is little to memorize."""

    def __init__(self, dim: int, *, num_heads: int, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, num_heads=num_heads, head_dim=head_dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(
        self,
        states_NTD: Tensor,
        mask_N1QT: Tensor | None,
        *,
        is_causal: bool = False,
        queries_NQD: Tensor | None = None,
    ) -> Tensor:
        """Return the states after the block: (N, T, D), or (N, Q, D) of `queries_NQD` alone, which are some of them."""
        normed_NTD = self.attention_norm(states_NTD)
        if queries_NQD is None:
            queries_NQD, normed_NQD = states_NTD, normed_NTD
        else:
            normed_NQD = self.attention_norm(queries_NQD)
        queries_NQD = queries_NQD + self.attention(normed_NQD, normed_NTD, mask_N1QT, is_causal=is_causal)
        states_NQD: Tensor = queries_NQD + self.feed_forward(self.feed_forward_norm(queries_NQD))
        return states_NQD


def key_mask(length_N: Tensor, num_elements: int) -> Tensor:
    """Return (N, 1, 1, T): True where a query may look; of an empty sequence its first place, for it must see one."""
    mask_NT: Tensor = torch.arange(num_elements, device=length_N.device) < length_N.clamp(min=1)[:, None]
    return mask_NT[:, None, None]


def zero_norm(dim: int) -> nn.LayerNorm:
    """Return a LayerNorm whose outputs are zero at first: an encoder that has learned nothing yet adds no noise."""
    norm = nn.LayerNorm(dim)
    nn.init.zeros_(norm.weight)
    return norm
