"""A table's rows as torch tensors: gathered in the forward pass, moved in the backward pass."""

# K keys, D dimension
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from embeddings.lookup import Lookup
    from embeddings.table import EmbeddingTable


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, table: EmbeddingTable, lookup: Lookup) -> torch.Tensor:
        # the graph holds the lookup, and with it the rows: a graph that is dropped lets go of them
        ctx.table, ctx.lookup = table, lookup
        return torch.from_numpy(table.gather(lookup))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None]:
        grads_KD = grads[0].detach().to(torch.float32).contiguous()
        ctx.table.update(ctx.lookup, grads_KD.numpy())
        return None, None, None


def embed(table: EmbeddingTable, lookup: Lookup) -> torch.Tensor:
    """The rows of a lookup's keys, (K, D) float32; their gradient goes into the table, once."""
    if not torch.is_grad_enabled():
        return torch.from_numpy(table.gather(lookup))
    anchor = torch.empty(0, requires_grad=True)  # so that the rows, which are no parameters, ask for a gradient
    rows_KD: torch.Tensor = _Embed.apply(anchor, table, lookup)  # type: ignore[no-untyped-call]
    return rows_KD
