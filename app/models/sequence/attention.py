"""Multi-head attention on torch's scaled_dot_product_attention, and what it computes, written out.

Which elements a query sees is a mask of True and False, or "none after it" (causal).
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
