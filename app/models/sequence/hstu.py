"""HSTU (Zhai et al. 2024): attention whose weights are SiLU of each pair alone, so that they count and do not compete.

SiLU is not softmax, so torch's fused attention cannot compute it: N * H * T * T numbers are kept for the gradients.
"""

# N samples, T elements (history and target), Q queries (T or 1), H heads, A numbers of a
# head, W numbers of all heads, D dimension
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, silu

from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_size
from springtide.app.models.sequence.encoder_block import split_heads, zero_norm
from springtide.app.models.sequence.sequence_model import History, SequenceModel, append, element


class HSTU(SequenceModel):
    """`blocks` of pointwise attention with `num_heads` heads of `head_dim` numbers."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        blocks: int = 2,
        num_heads: int = 2,
        head_dim: int = 16,
        **shared: Any,
    ) -> None:
        super().__init__(spec, **shared)
        self.encoder = HSTUEncoder(
            spec.dim,
            self.inputs.max_length + 1,
            blocks=check_size("blocks", blocks),
            num_heads=check_size("num_heads", num_heads),
            head_dim=check_size("head_dim", head_dim),
        )


class HSTUEncoder(nn.Module):
    """The state of the target, which comes after the history; each element sees itself and those before it.

    No block needs a mask of the padding: it comes after every element that counts. The last block computes only the
    state that is used.
    """

    def __init__(self, dim: int, max_length: int, *, blocks: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            HSTUBlock(dim, max_length, num_heads=num_heads, head_dim=head_dim) for _ in range(blocks)
        )
        self.norm = zero_norm(dim)

    def forward(self, target_ND: Tensor, history: History) -> Tensor:
        length_N = history.length_N
        states_NTD = append(history.rows_NTD, length_N, target_ND)
        gaps_NTD = history.gaps_NTD
        if gaps_NTD is not None:
            gaps_NTD = append(gaps_NTD, length_N, torch.zeros_like(target_ND))
        places_T = torch.arange(states_NTD.shape[1], device=length_N.device)
        *blocks, last = self.blocks
        for block in blocks:
            states_NTD = block(states_NTD, gaps_NTD, states_NTD, places_T.unsqueeze(0))
        state_N1D = last(states_NTD, gaps_NTD, element(states_NTD, length_N), length_N.unsqueeze(1))
        state_ND: Tensor = self.norm(state_N1D).squeeze(1)
        return state_ND


class HSTUBlock(nn.Module):
    """Equations 2 to 4 of the paper.

    The relative bias of a pair is a learned number for its distance in places, plus one for the time gap of the
    element that is seen. Both start at zero.
    """

    def __init__(self, dim: int, max_length: int, *, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.max_length = num_heads, max_length
        width = num_heads * head_dim
        self.norm = nn.LayerNorm(dim)
        self.of_query, self.of_element = nn.Linear(dim, 2 * width), nn.Linear(dim, 2 * width)
        self.distance_bias = nn.Parameter(torch.zeros(max_length, num_heads))
        self.time_bias = nn.Linear(dim, num_heads, bias=False)
        nn.init.zeros_(self.time_bias.weight)
        self.attended_norm = nn.LayerNorm(width, eps=1e-6)
        self.out = nn.Linear(width, dim)

    def forward(self, states_NTD: Tensor, gaps_NTD: Tensor | None, queries_NQD: Tensor, places_NQ: Tensor) -> Tensor:
        """Return the queries' states after the block, (N, Q, D). `places`: where they are; axis N may be 1 for all."""
        gate_NQW, query_NQW = silu(self.of_query(self.norm(queries_NQD))).chunk(2, dim=-1)
        key_NTW, value_NTW = silu(self.of_element(self.norm(states_NTD))).chunk(2, dim=-1)
        query_NHQA, key_NHTA, value_NHTA = (
            split_heads(part, self.num_heads) for part in (query_NQW, key_NTW, value_NTW)
        )
        distance_NQT = places_NQ.unsqueeze(-1) - torch.arange(states_NTD.shape[1], device=places_NQ.device)
        bias_NHQT = embedding(distance_NQT.clamp(0, self.max_length - 1), self.distance_bias).movedim(-1, 1)
        if gaps_NTD is not None:
            bias_NHQT = bias_NHQT + self.time_bias(gaps_NTD).movedim(-1, 1).unsqueeze(2)
        weights_NHQT = silu(query_NHQA @ key_NHTA.transpose(-2, -1) + bias_NHQT) / self.max_length
        weights_NHQT = weights_NHQT.masked_fill(distance_NQT.unsqueeze(1) < 0, 0.0)
        attended_NQW = (weights_NHQT.to(value_NHTA.dtype) @ value_NHTA).transpose(1, 2).flatten(-2)
        changes_NQD: Tensor = self.out(self.attended_norm(attended_NQW) * gate_NQW)
        return queries_NQD + changes_NQD
