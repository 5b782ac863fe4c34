"""The rows of a DynamicEmbedding on all ranks, and what belongs to a rank: folders, rows, shards of a state_dict."""

# K keys of one call here, U unique ones, P keys that the ranks request of this one, V unique ones of them, D dimension,
# N rows
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from springtide.embeddings.rows import BoolArray
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.route import KeyRoute, RequestedKeys, are_of_rank
from springtide.embeddings.sharding.row_format import Precision, RowFormat
from springtide.embeddings.sharding.sharded_table import Request, ShardedLookup, ShardedTable
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.types import Array, UniqueKeys
from springtide_client.rows.row_block import RowBlock


@dataclass(frozen=True)
class PrefetchedIds:
    """A prefetch, valid for one call with the same ids in the same order."""

    ids: torch.Tensor  # of the caller; on the host a copy
    version: int  # of a tensor on a device, which is compared without looking at it
    unique: UniqueKeys
    fetch: Any

    @staticmethod
    def of(ids: torch.Tensor, unique: UniqueKeys, fetch: Any) -> PrefetchedIds:
        kept = ids.detach().clone() if ids.device.type == "cpu" else ids
        return PrefetchedIds(kept, _version(ids), unique, fetch)

    def are(self, ids: torch.Tensor) -> bool:
        """Return True if these are the same ids. Does not wait for a device."""
        if ids.device != self.ids.device or ids.dtype != self.ids.dtype or ids.numel() != self.ids.numel():
            return False
        if ids.device.type == "cpu":
            return torch.equal(ids.reshape(-1), self.ids.reshape(-1))
        is_same = ids is self.ids or (ids.data_ptr() == self.ids.data_ptr() and ids.stride() == self.ids.stride())
        return is_same and _version(ids) == self.version >= 0


def _version(ids: torch.Tensor) -> int:
    """How often a tensor was changed in place; -1 if torch does not count it."""
    return -1 if ids.is_inference() else ids._version


class ShardedRows(ShardedTable):
    """The rows of one feature: only ids travel, and each owner's table admits them and knows the time by itself."""

    admits_together = False

    def __init__(
        self, table: EmbeddingTable, exchange: Exchange, precisions: tuple[str, str], *, seed: int, feature: int
    ) -> None:
        """`precisions`: how rows and gradients travel, of row_format.FORMATS."""
        super().__init__([table], exchange, Precision(*precisions), seed=seed)
        self.table, self.feature, self.now_ms = table, feature, 0

    def embed(self, unique: UniqueKeys, fetch: Request | None, now_ms: int) -> tuple[Tensor, int]:
        """The rows of unique ids, (U, D) float32, and how many keys all ranks requested of this one.

        The backward pass updates the rows at their owners, by the mean over the ranks of gradients, as in
        DistributedDataParallel. All ranks, and all take the backward pass. If the lookup fails on one rank, its error
        is raised there, and a ShardError on the others.
        """
        self.now_ms = now_ms
        lookup = self.lookup_unique(unique, fetch=None if fetch is None else self._seen_now(fetch))
        anchor = torch.empty(0, requires_grad=True)  # the rows are not parameters, so this makes autograd call backward
        rows_UD: Tensor = _Embed.apply(anchor, self, lookup)  # type: ignore[no-untyped-call]
        return rows_UD, lookup.lookups_T[0].num_occurrences

    def read(
        self, unique: UniqueKeys, rows_of: Callable[[EmbeddingTable, UniqueKeys], tuple[Array, Array]]
    ) -> tuple[Tensor, Array]:
        """Read the rows of unique ids, (U, D), by `rows_of` at their owners; and the status of the ids requested of
        this rank, (P). All ranks.
        """
        rows_UD, status_P, _ = self._read(unique, rows_of, self.row_formats[0])
        return rows_UD, status_P

    def find_unique(self, unique: UniqueKeys) -> tuple[Array, Array]:
        """The rows, (K, D), NaN for ids without one, and their status, (K), as `EmbeddingTable.find`. All ranks."""
        rows_UD, status_P, route = self._read(unique, EmbeddingTable.find_unique, RowFormat("float32", self.dim))
        status_U = self._answer("status", route, [status_P], len(unique.ids_U))
        return self.ops.array_of(rows_UD)[unique.inverse_K], status_U[unique.inverse_K]

    def _read(
        self,
        unique: UniqueKeys,
        rows_of: Callable[[EmbeddingTable, UniqueKeys], tuple[Array, Array]],
        row_format: RowFormat,
    ) -> tuple[Tensor, Array, KeyRoute]:
        request = self.request(unique)
        rows_PD, status_P = rows_of(self.table, request.requested_T[0].unique)
        packed = row_format.pack(self.ops.tensor_of(rows_PD))
        rows_UD, _ = self._unpack(len(unique.ids_U), request.route, [packed], [row_format])
        return rows_UD, status_P, request.route

    def _columns_of(self, unique: UniqueKeys) -> list[Array]:
        return [unique.ids_U, unique.occurrences_U.astype(np.int32)]

    def _requested(self, columns: Sequence[Array], num_occurrences: int) -> RequestedKeys:
        (ids_P, occurrences_P), xp = columns, self.ops.xp
        features_P, times_P = xp.full(len(ids_P), self.feature, np.uint16), xp.full(len(ids_P), self.now_ms, np.int64)
        return RequestedKeys.of(self.ops, [features_P, ids_P, times_P, occurrences_P], num_occurrences)

    def _seen_now(self, request: Request) -> Request:
        """A request that was made ahead, of this call."""
        (requested,) = request.requested_T
        times_V = self.ops.xp.full(len(requested.unique.ids_U), self.now_ms, np.int64)
        return replace(request, requested_T=[replace(requested, unique=requested.unique._replace(last_seen_U=times_V))])


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rows: ShardedRows, lookup: ShardedLookup) -> Any:
        ctx.rows, ctx.lookup = rows, lookup
        return lookup.rows_UD.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        rows = ctx.rows
        with rows.ops.on_current_stream():
            rows.update(ctx.lookup, grads[0].detach().to(torch.float32).contiguous() / rows.exchange.num_ranks)
        return (None,) * 3


if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

KEY_COLUMNS = "features", "ids", "values", "states", "counts", "last_seen"


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
