"""SASRec (Kang & McAuley 2018): causal self-attention over the history; its last state is what a user wants now.

The paper learns it to predict the next item. Here it learns from the labels: its product with the target's rows is one
of the pairs that are added to the score.
"""

# N samples, T elements, D dimension
from typing import Any

import torch
from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_size
from springtide.app.models.sequence.encoder_block import EncoderBlock, key_mask, zero_norm
from springtide.app.models.sequence.sequence_model import History, Positions, SequenceModel, element


class SASRec(SequenceModel):
    """`blocks` of attention with `num_heads` heads of `head_dim` numbers and a perceptron of `hidden`."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        blocks: int = 2,
        num_heads: int = 2,
        head_dim: int = 16,
        hidden: int = 64,
        **shared: Any,
    ) -> None:
        super().__init__(spec, **shared)
        self.encoder = CausalEncoder(
            spec.dim,
            self.inputs.max_length,
            blocks=check_size("blocks", blocks),
            num_heads=check_size("num_heads", num_heads),
            head_dim=check_size("head_dim", head_dim),
            hidden=check_size("hidden", hidden),
        )


class CausalEncoder(nn.Module):
    """The state of the newest element after all blocks, zeros without one. It does not depend on the target.

    No block needs a mask of the padding: it comes after every element that counts. The last block computes only the
    state that is used.
    """

    def __init__(self, dim: int, max_length: int, *, blocks: int, num_heads: int, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.positions = Positions(max_length, dim)
        self.blocks = nn.ModuleList(
            EncoderBlock(dim, num_heads=num_heads, head_dim=head_dim, hidden=hidden) for _ in range(blocks)
        )
        self.norm = zero_norm(dim)

    def forward(self, target_ND: Tensor, history: History) -> Tensor:
        length_N, num_elements = history.length_N, history.rows_NTD.shape[1]
        states_NTD = history.keys_NTD() + self.positions(length_N, num_elements)
        *blocks, last = self.blocks
        for block in blocks:
            states_NTD = block(states_NTD, None, is_causal=True)
        newest_N1D = element(states_NTD, (length_N - 1).clamp(min=0))
        newest_N1D = last(states_NTD, key_mask(length_N, num_elements), queries_NQD=newest_N1D)
        return torch.where(length_N.unsqueeze(1) > 0, self.norm(newest_N1D).squeeze(1), 0.0)
