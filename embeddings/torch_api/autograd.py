"""A table's rows as torch tensors: gathered in the forward pass, moved in the backward pass."""

# K keys, B bags, D dimension
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from kernels.ops import Ops
from kernels.types import Array

if TYPE_CHECKING:
    from embeddings.lookup.handle import Lookup
    from embeddings.table import EmbeddingTable

MODES = ("sum", "mean", "max")


class LookupSlice(NamedTuple):
    """Keys start..stop of a lookup: a row each, or pooled into bags. Bag b holds keys offsets[b] to offsets[b + 1],

    counted from `start`. An empty bag gives zeros.
    """

    start: int
    stop: int
    offsets_B1: Array | None = None
    mode: str = "mean"


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, table: EmbeddingTable, lookup: Lookup, parts: Sequence[LookupSlice]
    ) -> Any:
        # the graph holds the lookup, and with it the rows: a graph that is dropped lets go of them
        ctx.table, ctx.lookup, ctx.parts = table, lookup, parts
        pairs = [table.gather_slice(lookup, part) for part in parts]
        ctx.winners = [winners for _, winners in pairs]
        return tuple(table.ops.tensor_of(rows) for rows, _ in pairs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None, None]:
        ops = ctx.table.ops
        with ops.on_current_stream():
            arrays = [ops.array_of(grad.detach().to(torch.float32).contiguous()) for grad in grads]
            ctx.table.update(ctx.lookup, *flatten_gradients(ops, ctx.parts, arrays, ctx.winners))
        return None, None, None, None


def embed(table: EmbeddingTable, lookup: Lookup, parts: Sequence[LookupSlice]) -> tuple[torch.Tensor, ...]:
    """A tensor for each part, (keys, D) or (bags, D) float32; all their gradients go into the table at once."""
    if not torch.is_grad_enabled():
        return tuple(table.ops.tensor_of(table.gather_slice(lookup, part)[0]) for part in parts)
    anchor = torch.empty(0, requires_grad=True)  # so that the rows, which are no parameters, ask for a gradient
    tensors: tuple[torch.Tensor, ...] = _Embed.apply(anchor, table, lookup, parts)  # type: ignore[no-untyped-call]
    return tensors


def flatten_gradients(
    ops: Ops, parts: Sequence[LookupSlice], grads: Sequence[Array], winners: Sequence[Array | None]
) -> tuple[Array, Array | None, Array | None]:
    """Gradients of parts, which cover the lookup's keys in order, as `update` takes them:

    rows of gradients, which of them each key takes, and times what.
    """
    if len(parts) == 1 and parts[0].offsets_B1 is None:
        return grads[0], None, None
    xp = ops.xp
    rows: list[Array] = []
    bags: list[Array] = []
    scales: list[Array] = []
    num_rows = 0
    for part, grads_BD, winners_BD in zip(parts, grads, winners, strict=True):
        num_keys = part.stop - part.start
        scale_K = xp.ones(num_keys, np.float32)
        if part.offsets_B1 is None:
            bag_K = xp.arange(num_keys)
        elif winners_BD is not None:
            grads_BD, bag_K = _to_winners(xp, grads_BD, winners_BD, num_keys), xp.arange(num_keys)
        else:
            (offsets_B1,) = ops.put(part.offsets_B1)
            bag_K = ops.bags_of_keys(offsets_B1, num_keys)
            if part.mode == "mean":
                lengths_B = offsets_B1[1:] - offsets_B1[:-1]
                scale_K = (np.float32(1) / xp.maximum(lengths_B, 1).astype(np.float32))[bag_K]
        rows.append(grads_BD)
        bags.append(bag_K + num_rows)
        scales.append(scale_K)
        num_rows += len(grads_BD)
    return xp.concatenate(rows), xp.concatenate(bags), xp.concatenate(scales)


def _to_winners(xp: Any, grads_BD: Array, winners_BD: Array, num_keys: int) -> Array:
    """Each element of a bag's gradient to the key that gave it, counted within the part; -1: none did."""
    dim = grads_BD.shape[1]
    grads_KD = xp.zeros((num_keys + 1, dim), np.float32)  # the last row takes what nobody gave
    grads_KD[xp.where(winners_BD < 0, num_keys, winners_BD), xp.arange(dim)] = grads_BD
    return grads_KD[:num_keys]
