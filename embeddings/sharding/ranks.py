"""Ownership among the ranks of a process group: folders, rows, parts of a state_dict."""

# N rows
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from springtide.embeddings.config import TableConfig
from springtide.embeddings.rows import BoolArray, Rows
from springtide.embeddings.sharding.key_ranges import are_of_rank
from springtide.embeddings.sharding.sharded_rows import ShardedRows

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


def rows_of_rank(rows: Rows, shards: ShardedRows | None) -> Rows:
    """Those of these rows that belong to this rank."""
    return rows if shards is None else rows.take(np.flatnonzero(_is_here(rows.features, rows.ids, shards)))


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
