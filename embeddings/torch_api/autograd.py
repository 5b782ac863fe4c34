"""A table's rows as torch tensors: gathered in the forward pass, updated in the backward pass."""

# K keys, B bags, D dimension
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from springtide.embeddings.lookup.handle import Lookup, LookupSlice, StepTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, table: StepTable[Any], lookup: Lookup, slices: Sequence[LookupSlice]
    ) -> Any:
        # the graph refers to the lookup, which pins the rows; a graph that is dropped releases them
        ctx.table, ctx.lookup, ctx.slices = table, lookup, slices
        pairs = [table.gather_slice(lookup, part) for part in slices]
        ctx.winners = [winners for _, winners in pairs]
        return tuple(table.ops.tensor_of(rows) for rows, _ in pairs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None, None]:
        ops = ctx.table.ops
        with ops.on_current_stream():
            arrays = [ops.array_of(grad.detach().to(torch.float32).contiguous()) for grad in grads]
            ctx.table.update(ctx.lookup, *flatten_gradients(ops, ctx.slices, arrays, ctx.winners))
        return None, None, None, None


def embed(table: StepTable[Any], lookup: Lookup) -> torch.Tensor:
    """The rows of a lookup's keys, (K, D) float32. Where gradients are enabled, its backward pass updates the table."""
    return embed_slices(table, lookup, [LookupSlice(0, len(lookup))])[0]


def embed_slices(table: StepTable[Any], lookup: Lookup, slices: Sequence[LookupSlice]) -> tuple[torch.Tensor, ...]:
    """A tensor for each slice, (keys, D) or (bags, D) float32. The backward pass is one update with all gradients.

    ValueError unless the slices cover the keys of the lookup in order.
    """
    bounds = [0, *(part.stop for part in slices)]
    if bounds[-1] != len(lookup) or [part.start for part in slices] != bounds[:-1]:
        raise ValueError(f"the slices {bounds} do not cover the {len(lookup)} keys of the lookup in order")
    if not torch.is_grad_enabled():
        return tuple(table.ops.tensor_of(table.gather_slice(lookup, part)[0]) for part in slices)
    anchor = torch.empty(0, requires_grad=True)  # the rows are not parameters, so this makes autograd call backward
    tensors: tuple[torch.Tensor, ...] = _Embed.apply(anchor, table, lookup, slices)  # type: ignore[no-untyped-call]
    return tensors


def flatten_gradients(
    ops: Ops, slices: Sequence[LookupSlice], grads: Sequence[Array], winners: Sequence[Array | None]
) -> tuple[Array, Array | None, Array | None]:
    """The gradients of slices as `EmbeddingTable.update` takes them: rows, the row of each key, and its factor.

    `winners`: for max pooling, which key gave each number of a bag.
    """
    if len(slices) == 1 and slices[0].offsets_B1 is None:
        return grads[0], None, None
    xp = ops.xp
    rows: list[Array] = []
    bags: list[Array] = []
    scales: list[Array] = []
    num_rows = 0
    for part, grads_BD, winners_BD in zip(slices, grads, winners, strict=True):
        num_keys = part.stop - part.start
        scale_K = xp.ones(num_keys, np.float32)
        if part.offsets_B1 is None:
            bag_K = xp.arange(num_keys)
        elif winners_BD is not None:
            grads_BD, bag_K = _to_winners(xp, grads_BD, winners_BD, num_keys), xp.arange(num_keys)
        else:
            (offsets_B1,) = ops.put(part.offsets_B1)
            bag_K = ops.bags_of_keys(offsets_B1, num_keys)
            if part.scales_K is not None:
                (scale_K,) = ops.put(part.scales_K)
            elif part.mode == "mean":
                lengths_B = offsets_B1[1:] - offsets_B1[:-1]
                scale_K = (np.float32(1) / xp.maximum(lengths_B, 1).astype(np.float32))[bag_K]
        rows.append(grads_BD)
        bags.append(bag_K + num_rows)
        scales.append(scale_K)
        num_rows += len(grads_BD)
    return xp.concatenate(rows), xp.concatenate(bags), xp.concatenate(scales)


def _to_winners(xp: Any, grads_BD: Array, winners_BD: Array, num_keys: int) -> Array:
    """Each number of a bag's gradient in the row of the key that won it, counted within the slice; -1: no key."""
    dim = grads_BD.shape[1]
    grads_KD = xp.zeros((num_keys + 1, dim), np.float32)  # the last row takes what no key won
    grads_KD[xp.where(winners_BD < 0, num_keys, winners_BD), xp.arange(dim)] = grads_BD
    return grads_KD[:num_keys]
