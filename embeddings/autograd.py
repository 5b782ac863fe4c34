"""A table's rows as torch tensors: gathered in the forward pass, moved in the backward pass."""

# K keys, B bags, D dimension
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from embeddings.rows import Float32Array, Int64Array

if TYPE_CHECKING:
    from embeddings.lookup import Lookup
    from embeddings.table import EmbeddingTable

MODES = ("sum", "mean", "max")


class Part(NamedTuple):
    """Keys start..stop of a lookup: a row each, or pooled into bags. Bag b holds keys offsets[b] to offsets[b + 1],

    counted from `start`. An empty bag gives zeros.
    """

    start: int
    stop: int
    offsets_B1: Int64Array | None = None
    mode: str = "mean"


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, table: EmbeddingTable, lookup: Lookup, parts: Sequence[Part]) -> Any:
        # the graph holds the lookup, and with it the rows: a graph that is dropped lets go of them
        ctx.table, ctx.lookup, ctx.parts = table, lookup, parts
        pairs = [table.gather_part(lookup, part) for part in parts]
        ctx.winners = [winners for _, winners in pairs]
        return tuple(torch.from_numpy(rows) for rows, _ in pairs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None, None]:
        arrays = [grad.detach().to(torch.float32).contiguous().numpy() for grad in grads]
        ctx.table.update(ctx.lookup, *spread(ctx.parts, arrays, ctx.winners))
        return None, None, None, None


def embed(table: EmbeddingTable, lookup: Lookup, parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
    """A tensor for each part, (keys, D) or (bags, D) float32; all their gradients go into the table at once."""
    if not torch.is_grad_enabled():
        return tuple(torch.from_numpy(table.gather_part(lookup, part)[0]) for part in parts)
    anchor = torch.empty(0, requires_grad=True)  # so that the rows, which are no parameters, ask for a gradient
    tensors: tuple[torch.Tensor, ...] = _Embed.apply(anchor, table, lookup, parts)  # type: ignore[no-untyped-call]
    return tensors


def spread(
    parts: Sequence[Part], grads: Sequence[Float32Array], winners: Sequence[Int64Array | None]
) -> tuple[Float32Array, Int64Array | None, Float32Array | None]:
    """Gradients of parts, which cover the lookup's keys in order, as `update` takes them:

    rows of gradients, which of them each key takes, and times what.
    """
    if len(parts) == 1 and parts[0].offsets_B1 is None:
        return grads[0], None, None
    rows: list[Float32Array] = []
    bags: list[Int64Array] = []
    scales: list[Float32Array] = []
    num_rows = 0
    for part, grads_BD, winners_BD in zip(parts, grads, winners, strict=True):
        num_keys = part.stop - part.start
        scale_K = np.ones(num_keys, np.float32)
        if part.offsets_B1 is None:
            bag_K = np.arange(num_keys)
        elif winners_BD is not None:
            grads_BD, bag_K = _to_winners(grads_BD, winners_BD, num_keys), np.arange(num_keys)
        else:
            lengths_B = np.diff(part.offsets_B1)
            bag_K = np.repeat(np.arange(len(lengths_B)), lengths_B)
            if part.mode == "mean":
                scale_K = np.repeat(np.float32(1) / np.maximum(lengths_B, 1).astype(np.float32), lengths_B)
        rows.append(grads_BD)
        bags.append(bag_K + num_rows)
        scales.append(scale_K)
        num_rows += len(grads_BD)
    return np.concatenate(rows), np.concatenate(bags), np.concatenate(scales)


def _to_winners(grads_BD: Float32Array, winners_BD: Int64Array, num_keys: int) -> Float32Array:
    """Each element of a bag's gradient to the key that gave it, counted within the part; -1: none did."""
    grads_KD = np.zeros((num_keys, grads_BD.shape[1]), np.float32)
    bags_M, columns_M = np.nonzero(winners_BD >= 0)
    grads_KD[winners_BD[bags_M, columns_M], columns_M] = grads_BD[bags_M, columns_M]
    return grads_KD
