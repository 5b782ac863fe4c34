"""The rows of one feature on all ranks: unique ids to their owners, rows back, and gradients in the backward pass; and
what belongs to which rank: folders, rows, parts of a state_dict.
"""

# K keys of one call here, U unique ones, P keys that the ranks request of this one, D dimension, N rows
from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from springtide.embeddings.config import TableConfig
from springtide.embeddings.errors import SpillError
from springtide.embeddings.lookup.handle import Occurrences, TableLookup
from springtide.embeddings.lookup.prefetch import Prefetch
from springtide.embeddings.rows import BoolArray
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.route import KeyRoute, are_of_rank
from springtide.embeddings.sharding.row_format import RowFormat
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array
from springtide_client.rows.row_block import RowBlock


@dataclass(frozen=True)
class PrefetchedIds:
    """A prefetch, valid for one call with the same ids in the same order."""

    ids: torch.Tensor  # of the caller; on the host a copy
    version: int  # of a tensor on a device, which is compared without looking at it
    prefetch: Prefetch | None  # None: its rows are not being recalled

    @staticmethod
    def of(ids: torch.Tensor, prefetch: Prefetch | None) -> PrefetchedIds:
        kept = ids.detach().clone() if ids.device.type == "cpu" else ids
        return PrefetchedIds(kept, _version(ids), prefetch)

    def are(self, ids: torch.Tensor) -> bool:
        """Return True if these are the same ids. Does not wait for a device."""
        if ids.device != self.ids.device or ids.dtype != self.ids.dtype or ids.numel() != self.ids.numel():
            return False
        if ids.device.type == "cpu":
            return torch.equal(ids.reshape(-1), self.ids.reshape(-1))
        is_same = ids is self.ids or (ids.data_ptr() == self.ids.data_ptr() and ids.stride() == self.ids.stride())
        return is_same and _version(ids) == self.version >= 0

    def seen_at(self, features_K: Array, ids_K: Array, times_K: Array) -> Prefetch | None:
        """The prefetch for these arrays of the same ids, which are looked up at one time."""
        if self.prefetch is None:
            return None
        unique = self.prefetch.unique
        unique = unique._replace(last_seen_U=times_K[: len(unique.ids_U)])
        return replace(self.prefetch, features_K=features_K, ids_K=ids_K, event_ms_K=times_K, unique=unique)


def _version(ids: torch.Tensor) -> int:
    """How often a tensor was changed in place; -1 if torch does not count it."""
    return -1 if ids.is_inference() else ids._version


@dataclass(frozen=True)
class RequestedIds:
    """A call's ids at their owners."""

    inverse_K: Tensor  # int64, the place of each key among the unique ids
    route: KeyRoute
    ids_P: Array  # what the ranks request of this one
    occurrences: Occurrences

    def in_order(self, rows_UX: Tensor) -> Tensor:
        """Return what came from the owners in the order of the unique ids."""
        ordered_UX = torch.empty_like(rows_UX)
        ordered_UX[self.route.order_T[0]] = rows_UX
        return ordered_UX

    def keys(self, ops: Ops, feature: int, now_ms: int) -> tuple[Array, Array, Array]:
        """The columns to look up: features, ids, times."""
        num_keys, xp = len(self.ids_P), ops.xp
        return xp.full(num_keys, feature, np.uint16), self.ids_P, xp.full(num_keys, now_ms, np.int64)


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
        self._prefetched: tuple[PrefetchedIds, RequestedIds] | None = None

    def request(self, table: EmbeddingTable, ids_K: Array) -> RequestedIds:
        """Send each unique id to its owner. All ranks."""
        ops, xp = table.ops, table.ops.xp
        unique = ops.unique(self._features(table, ids_K), ids_K, xp.zeros(len(ids_K), np.int64))
        route = KeyRoute.of(self.exchange, ops, unique)
        columns = ops.tensor_of(unique.ids_U), ops.tensor_of(unique.occurrences_U.astype(np.int32))
        (received,) = route.columns_to_owners("keys", columns)
        ids_P, occurrences_P = map(ops.array_of, received)
        occurrences = Occurrences(occurrences_P.astype(np.int64), route.requested_occurrences_T[0])
        return RequestedIds(ops.tensor_of(unique.inverse_K), route, ids_P, occurrences)

    def find(self, table: EmbeddingTable, ids_K: Array) -> tuple[Array, Array]:
        """The rows, (K, D), NaN for ids without one, and their status, (K), as `EmbeddingTable.find`. All ranks."""
        ops, requested = table.ops, self.request(table, ids_K)
        rows_PD, status_P = table.find(self._features(table, requested.ids_P), requested.ids_P)
        rows_UD = self.answer(requested, ops.tensor_of(rows_PD), exact=True)
        (status_U1,) = requested.route.to_requesters("status", [ops.tensor_of(status_P).reshape(-1, 1)])
        status_U1 = requested.in_order(status_U1)
        return ops.array_of(rows_UD[requested.inverse_K]), ops.array_of(status_U1[requested.inverse_K, 0])

    def drop_prefetch(self) -> None:
        """Forget a prefetch, because the table is another one now. All ranks."""
        self._prefetched = None

    def prefetch(self, table: EmbeddingTable, ids: Tensor, ids_K: Array) -> None:
        """Send the ids of the next `embed` to their owners, who start to recall their rows. All ranks."""
        requested, prefetch = self.request(table, ids_K), None
        if len(requested.ids_P):
            with suppress(SpillError):  # which the lookup itself will report
                prefetch = table.prefetch(*requested.keys(table.ops, self.feature, now_ms=0))
        self._prefetched = PrefetchedIds.of(ids, prefetch), requested

    def embed(self, table: EmbeddingTable, ids: Tensor, ids_K: Array, now_ms: int) -> tuple[Tensor, Tensor, int]:
        """The rows of this rank's unique ids, (U, D) float32; the place of each key among them, (K); and how many keys
        all ranks requested of this one.

        The backward pass updates the rows at their owners. All ranks, and all take the backward pass. If the lookup
        fails on one rank, its error is raised there, and a ShardError on the others.
        """
        (prefetched, sent), self._prefetched = self._prefetched or (None, None), None
        if prefetched is not None and not self.exchange.all_true(prefetched.are(ids)):
            prefetched = sent = None
        requested = sent or self.request(table, ids_K)
        keys = requested.keys(table.ops, self.feature, now_ms)
        with self.exchange.failing_together():
            prefetch = None if prefetched is None else prefetched.seen_at(*keys)
            lookup = table.lookup(*keys, prefetched=prefetch, occurrences=requested.occurrences)
        anchor = torch.empty(0, requires_grad=True)  # the rows are not parameters, so this makes autograd call backward
        call = self, table, lookup, requested
        rows_UD: Tensor = _Embed.apply(anchor, *call)  # type: ignore[no-untyped-call]
        return rows_UD, requested.inverse_K, lookup.num_occurrences

    def read(
        self, table: EmbeddingTable, ids_K: Array, rows_of: Callable[[EmbeddingTable, Array], tuple[Array, Array]]
    ) -> tuple[Tensor, Tensor, Array]:
        """Read rows by `rows_of` at the owners: rows, places, and the status of the ids requested, (P). All ranks."""
        requested = self.request(table, ids_K)
        rows_PD, status_P = rows_of(table, requested.ids_P)
        return self.answer(requested, table.ops.tensor_of(rows_PD)), requested.inverse_K, status_P

    def answer(self, requested: RequestedIds, rows_PD: Tensor, *, exact: bool = False) -> Tensor:
        """Send the rows that were requested; return those of this rank's unique ids, (U, D) float32. All ranks.

        exact: as float32, whatever the setting.
        """
        row_format = RowFormat("float32", self.row_format.dim) if exact else self.row_format
        (bytes_UB,) = requested.route.to_requesters("rows", [row_format.pack(rows_PD)])
        rows_UD = rows_PD.new_empty(len(bytes_UB), row_format.dim)
        row_format.unpack(bytes_UB, requested.route.order_T[0], rows_UD)
        return rows_UD

    def update(self, table: EmbeddingTable, lookup: TableLookup, requested: RequestedIds, grads_UD: Tensor) -> None:
        """Send the gradients of this rank's unique ids to their owners, who take one step for each row. All ranks.

        As in DistributedDataParallel, the mean over the ranks is taken of the gradients.
        """
        self.num_updates += 1
        mean_UD = grads_UD / self.exchange.num_ranks
        packed = self.gradient_format.pack(mean_UD, requested.route.order_T[0], step=self.num_updates)
        (bytes_PB,) = requested.route.to_owners("gradients", [packed])
        table.update(lookup, table.ops.array_of(self.gradient_format.unpacked(bytes_PB)[0]))

    def _features(self, table: EmbeddingTable, ids_N: Array) -> Array:
        return table.ops.xp.full(len(ids_N), self.feature, np.uint16)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        rows: ShardedRows,
        table: EmbeddingTable,
        lookup: TableLookup,
        requested: RequestedIds,
    ) -> Any:
        ctx.rows, ctx.call = rows, (table, lookup, requested)
        return rows.answer(requested, table.ops.tensor_of(table.gather(lookup)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        with ctx.call[0].ops.on_current_stream():
            ctx.rows.update(*ctx.call, grads[0].detach().to(torch.float32).contiguous())
        return (None,) * 5


if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

KEY_COLUMNS = "features", "ids", "values", "states", "counts", "last_seen"


def shards_of(
    group: ProcessGroup, device: str, config: TableConfig, precisions: tuple[str, str], seed: int, feature: int
) -> ShardedRows | None:
    """None for a group of one rank, which has nothing to exchange. ValueError if it cannot be spread."""
    rows, gradients = precisions
    shards = ShardedRows(
        group, device=device, feature=feature, dim=config.dim, rows=rows, gradients=gradients, seed=seed
    )
    return shards if shards.exchange.num_ranks > 1 else None


def folder_of_rank(folder: Path, group: ProcessGroup | None) -> Path:
    """The spill folder of this rank: a folder of several ranks has one in it for each."""
    if group is None or dist.get_world_size(group) == 1:
        return folder
    return folder / f"rank-{dist.get_rank(group)}"


def rows_of_rank(rows: RowBlock, shards: ShardedRows | None) -> RowBlock:
    """Those of these rows that belong to this rank."""
    return rows if shards is None else rows.take(np.flatnonzero(_is_here(rows.feature, rows.id, shards)))


def state_of_rank(state: Mapping[str, Any], shards: ShardedRows | None) -> Mapping[str, Any]:
    """The part of a state that this rank loads. ValueError if the rows of other ranks are missing in it."""
    if "shard" not in state:
        return state  # the check of the state says what it lacks
    rank, num_ranks = (int(number) for number in state["shard"])
    here = (0, 1) if shards is None else (shards.exchange.rank, shards.exchange.num_ranks)
    if (rank, num_ranks) == here:
        return state
    if num_ranks > 1:
        raise ValueError(
            f"this is the state of rank {rank} of {num_ranks}, and this is rank {here[0]} of {here[1]}: for another "
            "number of ranks let each rank `export` its rows, and import all of them into every rank"
        )
    assert shards is not None
    features_N, ids_N = (state[name].detach().cpu().numpy() for name in ("features", "ids"))
    own = torch.from_numpy(np.flatnonzero(_is_here(features_N, ids_N, shards)))
    return {**state, **{name: state[name][own] for name in KEY_COLUMNS}}


def _is_here(features_N: Any, ids_N: Any, shards: ShardedRows) -> BoolArray:
    is_shared_N = features_N != shards.feature  # each rank has a shared row of its own
    exchange = shards.exchange
    keys_N = features_N.astype(np.uint16), ids_N.astype(np.int64)
    own_N: BoolArray = is_shared_N | are_of_rank(*keys_N, exchange.rank, exchange.num_ranks)
    return own_N
