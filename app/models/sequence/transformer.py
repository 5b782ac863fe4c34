"""A transformer ranker: the target is one more element of the history, as in BST (Chen et al. 2019).

Unlike BST it normalizes before each part and not after, has no dropout, and hands on the target's state alone, so
that histories of any length fit.
"""

# N samples, T elements, D dimension
from typing import Any

from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_size
from springtide.app.models.sequence.encoder_block import EncoderBlock, key_mask, zero_norm
from springtide.app.models.sequence.sequence_model import History, Positions, SequenceModel, append, element


class Transformer(SequenceModel):
    """`blocks` of attention with `num_heads` heads of `head_dim` numbers and a perceptron of `hidden`."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        blocks: int = 1,
        num_heads: int = 2,
        head_dim: int = 16,
        hidden: int = 64,
        **shared: Any,
    ) -> None:
        super().__init__(spec, **shared)
        self.encoder = TargetEncoder(
            spec.dim,
            self.inputs.max_length,
            blocks=check_size("blocks", blocks),
            num_heads=check_size("num_heads", num_heads),
            head_dim=check_size("head_dim", head_dim),
            hidden=check_size("hidden", hidden),
        )


class TargetEncoder(nn.Module):
    """The target's state after all blocks, in which every element sees every other one.

    The last block computes only the state that is used.
    """

    def __init__(self, dim: int, max_length: int, *, blocks: int, num_heads: int, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.positions = Positions(max_length + 1, dim)
        self.blocks = nn.ModuleList(
            EncoderBlock(dim, num_heads=num_heads, head_dim=head_dim, hidden=hidden) for _ in range(blocks)
        )
        self.norm = zero_norm(dim)

    def forward(self, target_ND: Tensor, history: History) -> Tensor:
        states_NTD = append(history.keys_NTD(), history.length_N, target_ND)
        length_N, num_elements = history.length_N + 1, states_NTD.shape[1]
        states_NTD = states_NTD + self.positions(length_N, num_elements)
        mask_N11T = key_mask(length_N, num_elements)
        *blocks, last = self.blocks
        for block in blocks:
            states_NTD = block(states_NTD, mask_N11T)
        state_N1D = last(states_NTD, mask_N11T, queries_NQD=element(states_NTD, history.length_N))
        state_ND: Tensor = self.norm(state_N1D).squeeze(1)
        return state_ND
