"""Multi-head attention, and a block of it and a perceptron, both with a residual connection and LayerNorm before them.

Attention is torch's scaled_dot_product_attention; `naive_attention` is what it computes, written out. Which elements a
query sees is a mask of True and False, or "none after it" (causal).
"""

# N samples, T elements, Q queries (T or 1), H heads, A numbers of a head, W numbers of all heads, D dimension
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[..., Tensor]


class MultiHeadAttention(nn.Module):
    """Attention of Vaswani et al. 2017; the heads' widths are chosen apart from the dimension of the rows."""

    attend: Attend = staticmethod(scaled_dot_product_attention)  # naive_attention computes the same

    def __init__(self, dim: int, *, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, num_heads * head_dim)
        self.key = nn.Linear(dim, num_heads * head_dim)
        self.value = nn.Linear(dim, num_heads * head_dim)
        self.out = nn.Linear(num_heads * head_dim, dim)

    def forward(
        self, queries_NQD: Tensor, states_NTD: Tensor, mask_N1QT: Tensor | None, *, is_causal: bool = False
    ) -> Tensor:
        """Return (N, Q, D). The mask's axis Q may be 1 for all queries alike; every query must see something."""
        query, key, value = self.query(queries_NQD), self.key(states_NTD), self.value(states_NTD)
        heads_NHQA = self.attend(
            *(split_heads(part, self.num_heads) for part in (query, key, value)),
            attn_mask=mask_N1QT,
            is_causal=is_causal,
        )
        out_NQD: Tensor = self.out(heads_NHQA.transpose(1, 2).flatten(-2))
        return out_NQD


def split_heads(parts_NTW: Tensor, num_heads: int) -> Tensor:
    """Return (N, H, T, A) from the heads' numbers side by side."""
    num, num_elements, width = parts_NTW.shape
    return parts_NTW.view(num, num_elements, num_heads, width // num_heads).transpose(1, 2)


def naive_attention(
    query_NHQA: Tensor,
    key_NHTA: Tensor,
    value_NHTA: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Compute scaled_dot_product_attention step by step: N * H * Q * T numbers are kept for the gradients."""
    scores_NHQT = query_NHQA @ key_NHTA.transpose(-2, -1) * query_NHQA.shape[-1] ** -0.5
    if is_causal:
        places_T = torch.arange(key_NHTA.shape[-2], device=key_NHTA.device)
        attn_mask = places_T[: query_NHQA.shape[-2], None] >= places_T
    if attn_mask is not None:
        scores_NHQT = scores_NHQT.masked_fill(~attn_mask, -torch.inf)
    return torch.softmax(scores_NHQT, dim=-1) @ value_NHTA


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
