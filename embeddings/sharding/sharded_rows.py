"""A lookup over all ranks: unique ids to their owners, rows back; in the backward pass gradients to the owners."""

# K keys of one call here, U unique ones, P keys that the ranks ask this one for, D dimension, R ranks
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from embeddings.errors import SpillError
from embeddings.lookup.handle import Lookup, LookupSlice
from embeddings.lookup.prefetched_ids import PrefetchedIds
from embeddings.sharding.exchange import Exchange
from embeddings.sharding.key_ranges import owners_of
from embeddings.sharding.row_format import RowFormat, bytes_of, numbers_of
from embeddings.table import EmbeddingTable
from kernels.types import Array

COUNT_BYTES = 4


@dataclass(frozen=True)
class Route:
    """Where the unique ids of a call went, and what the ranks asked this one for."""

    inverse_K: Tensor  # int64, the place of each key among the unique ids
    place_U: Tensor  # int64, the place of each unique id among the rows that are sent, which are sorted by owner
    send_R: list[int]  # unique ids by owner
    receive_R: list[int]  # ids asked for, by rank
    ids_P: Array  # int64, asked for, on the table's device
    occurrences_P: Array  # int64, how often each is in that rank's call

    def occurrences(self, xp: Any) -> Array:
        """The ids asked for, then again all but one of the occurrences of each: so the table counts every one."""
        return xp.concatenate([self.ids_P, xp.repeat(self.ids_P, self.occurrences_P - 1)])


class ShardedRows:
    """The rows of one feature, spread over the ranks of a group; each rank's table holds those of its range.

    Every rank makes the same calls in the same order, with ids of its own, which may be none.
    """

    def __init__(
        self, group: dist.ProcessGroup, *, device: str, feature: int, dim: int, rows: str, gradients: str, seed: int
    ) -> None:
        """device: of the tables, "cpu" or "cuda". `rows`, `gradients`: how they travel, of row_format.FORMATS."""
        self.exchange, self.feature = Exchange(group, device), feature
        self.row_format = RowFormat(rows, dim)
        self.gradient_format = RowFormat(gradients, dim, seed=seed * self.exchange.num_ranks + self.exchange.rank)
        self.num_updates = 0
        self._prefetched: tuple[PrefetchedIds, Route] | None = None

    def route(self, table: EmbeddingTable, ids_K: Array) -> Route:
        """Send each unique id to its owner. All ranks."""
        ops, xp = table.ops, table.ops.xp
        unique = ops.unique(self._features(table, ids_K), ids_K, xp.zeros(len(ids_K), np.int64))
        owners_U = owners_of(xp, unique.mixed_U, self.exchange.num_ranks)
        order_U = xp.argsort(owners_U, kind="stable")
        send = ops.tensor_of(ops.count_values(owners_U, self.exchange.num_ranks))
        receive_R, send_R = self.exchange.counts(send), send.tolist()
        occurrences_U = unique.occurrences_U[order_U].astype(np.int32)
        parts = ops.tensor_of(unique.ids_U[order_U]), ops.tensor_of(occurrences_U)
        message = torch.cat([bytes_of(part.reshape(-1, 1)) for part in parts], dim=1)
        received = self.exchange.rows("keys", message, send_R, receive_R)
        ids_P = numbers_of(received[:, :-COUNT_BYTES], torch.int64)[:, 0]
        occurrences_P = numbers_of(received[:, -COUNT_BYTES:], torch.int32)[:, 0]
        place_U = xp.empty_like(order_U)
        place_U[order_U] = xp.arange(len(order_U))
        return Route(
            ops.tensor_of(unique.inverse_K),
            ops.tensor_of(place_U),
            send_R,
            receive_R,
            ops.array_of(ids_P),
            ops.array_of(occurrences_P.to(torch.int64)),
        )

    def find(self, table: EmbeddingTable, ids_K: Array) -> tuple[Array, Array]:
        """The rows, (K, D), NaN for ids without one, and their status, (K), as `EmbeddingTable.find`. All ranks."""
        ops = table.ops
        route = self.route(table, ids_K)
        rows_PD, status_P = table.find(self._features(table, route.ids_P), route.ids_P)
        rows_UD = self.answer(route, ops.tensor_of(rows_PD), exact=True)
        status = ops.tensor_of(status_P).reshape(-1, 1)
        status_U = self.exchange.rows("status", status, route.receive_R, route.send_R)[route.place_U, 0]
        return ops.array_of(rows_UD[route.inverse_K]), ops.array_of(status_U[route.inverse_K])

    def drop_prefetch(self) -> None:
        """Forget a prefetch, because the table is another one now. All ranks."""
        self._prefetched = None

    def prefetch(self, table: EmbeddingTable, ids: Tensor, ids_K: Array) -> None:
        """Send the ids of the next `embed` to their owners, who start to recall their rows. All ranks."""
        route, prefetch = self.route(table, ids_K), None
        asked, xp = route.occurrences(table.ops.xp), table.ops.xp
        if len(asked):
            with suppress(SpillError):  # which the lookup itself will report
                prefetch = table.prefetch(self._features(table, asked), asked, xp.zeros(len(asked), np.int64))
        self._prefetched = PrefetchedIds.of(ids, prefetch), route

    def embed(self, table: EmbeddingTable, ids: Tensor, ids_K: Array, now_ms: int) -> tuple[Tensor, Tensor, int]:
        """The rows of this rank's unique ids, (U, D) float32; the place of each key among them, (K); and how many keys
        all ranks asked this one for.

        The backward pass updates the rows at their owners. All ranks, and all take the backward pass. If the lookup
        fails on one rank, its error is raised there, and a ShardError on the others.
        """
        (prefetched, routed), self._prefetched = self._prefetched or (None, None), None
        if prefetched is not None and not self.exchange.all_true(prefetched.are(ids)):
            prefetched = routed = None
        route = routed or self.route(table, ids_K)
        asked = route.occurrences(table.ops.xp)
        keys = self._features(table, asked), asked, table.ops.xp.full(len(asked), now_ms, np.int64)
        with self.exchange.failing_together():
            lookup = table.lookup(*keys, prefetched=None if prefetched is None else prefetched.seen_at(*keys))
        anchor = torch.empty(0, requires_grad=True)  # the rows are not parameters, so this makes autograd call backward
        rows_UD: Tensor = _Embed.apply(anchor, self, table, lookup, route)  # type: ignore[no-untyped-call]
        return rows_UD, route.inverse_K, len(asked)

    def read(
        self, table: EmbeddingTable, ids_K: Array, rows_of: Callable[[EmbeddingTable, Array], tuple[Array, Array]]
    ) -> tuple[Tensor, Tensor, Array]:
        """The same rows and places, by `rows_of` at the owners, and the status of the ids asked for, (P). All ranks."""
        route = self.route(table, ids_K)
        rows_PD, status_P = rows_of(table, route.ids_P)
        return self.answer(route, table.ops.tensor_of(rows_PD)), route.inverse_K, status_P

    def answer(self, route: Route, rows_PD: Tensor, *, exact: bool = False) -> Tensor:
        """Send the rows that were asked for; return those of this rank's unique ids, (U, D) float32. All ranks.

        exact: as float32, whatever the setting.
        """
        row_format = RowFormat("float32", self.row_format.dim) if exact else self.row_format
        bytes_PB = row_format.encode(rows_PD)
        bytes_UB = self.exchange.rows("rows", bytes_PB, route.receive_R, route.send_R)
        return row_format.decode(bytes_UB)[route.place_U]

    def update(self, table: EmbeddingTable, lookup: Lookup, route: Route, grads_UD: Tensor) -> None:
        """Send the gradients of this rank's unique ids to their owners, who take one step for each row. All ranks.

        As in DistributedDataParallel, the mean over the ranks is taken of the gradients.
        """
        ops, xp = table.ops, table.ops.xp
        sorted_UD = torch.empty_like(grads_UD)
        sorted_UD[route.place_U] = grads_UD / self.exchange.num_ranks
        bytes_UB = self.gradient_format.encode(sorted_UD, self.num_updates)
        self.num_updates += 1
        bytes_PB = self.exchange.rows("gradients", bytes_UB, route.send_R, route.receive_R)
        grads_PD = ops.array_of(self.gradient_format.decode(bytes_PB).contiguous())
        # an id that occurs often: its first occurrence has the sum of a rank's gradients, the others the row of zeros
        num_asked = len(grads_PD)
        grads_PD = xp.concatenate([grads_PD, xp.zeros((1, grads_PD.shape[1]), np.float32)])
        bags_K = xp.minimum(xp.arange(len(lookup)), num_asked)
        table.update(lookup, grads_PD, bags_K)

    def _features(self, table: EmbeddingTable, ids_N: Array) -> Array:
        return table.ops.xp.full(len(ids_N), self.feature, np.uint16)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, rows: ShardedRows, table: EmbeddingTable, lookup: Lookup, route: Route
    ) -> Any:
        ctx.rows, ctx.table, ctx.lookup, ctx.route = rows, table, lookup, route
        gathered_PD, _ = table.gather_slice(lookup, LookupSlice(0, len(route.ids_P)))
        return rows.answer(route, table.ops.tensor_of(gathered_PD))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None, None]:
        with ctx.table.ops.on_current_stream():
            grads_UD = grads[0].detach().to(torch.float32).contiguous()
            ctx.rows.update(ctx.table, ctx.lookup, ctx.route, grads_UD)
        return None, None, None, None, None
