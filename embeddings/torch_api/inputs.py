"""The arguments of a DynamicEmbedding's methods as arrays of its table, and rows in inference, where none is created.

ValueError for arguments that are invalid.
"""

# K keys of one call, D dimension, B bags
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from springtide.embeddings.config import TableConfig
from springtide.embeddings.eviction_policy import ScoredRows
from springtide.embeddings.lookup.handle import POOLING_MODES
from springtide.embeddings.lookup.materialize import KNOWN, NOT_ADMITTED
from springtide.embeddings.rows import Int64Array
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, UniqueKeys
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.rows.row_block import RowBlock
from springtide_client.system.settings import parse_size

FEATURE = 0  # the only feature of a module's table


def features_of(ops: Ops, ids_K: Array) -> Array:
    return ops.xp.full(len(ids_K), FEATURE, np.uint16)


def inference_rows(table: EmbeddingTable, unique: UniqueKeys) -> tuple[Array, Array]:
    """The rows (K, D), and their status (K).

    An id without a row gets the shared row if it is not admitted yet, else the values it would be created with.
    """
    ops, xp = table.ops, table.ops.xp
    rows_KD, status_K = table.find_unique(unique)
    rowless = xp.flatnonzero(status_K != KNOWN)
    if len(rowless):
        not_admitted = rowless[status_K[rowless] == NOT_ADMITTED]
        ids_N = unique.ids_U[unique.inverse_K[rowless]]
        rows_KD[rowless] = initial_rows(table, features_of(ops, ids_N), ids_N)
        if len(not_admitted):
            shared_1, zero_1 = xp.full(1, FEATURE + SHARED_ROW_OFFSET, np.uint16), xp.zeros(1, np.int64)
            shared_1D, status_1 = table.find(shared_1, zero_1)
            rows_KD[not_admitted] = shared_1D if status_1[0] == KNOWN else initial_rows(table, shared_1, zero_1)
    return rows_KD, status_K


def rows_where(predicate: Callable[[ScoredRows], torch.Tensor], rows: RowBlock) -> Int64Array:
    """The ids of the rows for which a predicate is true; not of the shared row."""
    rows = rows.take(rows.feature == FEATURE)
    columns = (rows.id, rows.value, rows.state, rows.count, rows.last_seen)
    with torch.no_grad():
        chosen_N = predicate(ScoredRows(*map(torch.from_numpy, columns)))
    if not isinstance(chosen_N, torch.Tensor) or chosen_N.dtype != torch.bool or chosen_N.shape != (len(rows),):
        given = f"{chosen_N.dtype} {tuple(chosen_N.shape)}" if isinstance(chosen_N, torch.Tensor) else chosen_N
        raise ValueError(f"a predicate must be one bool a row, a tensor ({len(rows)},), not {given!r}")
    return np.ascontiguousarray(rows.id[chosen_N.cpu().numpy()])


def initial_rows(table: EmbeddingTable, features_N: Array, ids_N: Array) -> Array:
    """The values with which the table would create these keys, rounded to its dtype."""
    config, ops = table.config, table.ops
    values_ND = ops.initial_values(features_N, ids_N, config.dim, table.seed, config.init_scale)
    if config.dtype == "bfloat16":
        return ops.array_of(ops.tensor_of(values_ND).to(torch.bfloat16).to(torch.float32))
    return values_ND


INT64_MAX = 2**63 - 1
INTEGERS = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def ids_of(ids: Any, ops: Ops | None = None) -> Array:
    """The ids of a tensor of any shape, flattened: on the host, or on the device of `ops`.

    The values of uint64 ids are checked, which waits for the device that they are on.
    """
    if not isinstance(ids, torch.Tensor):
        raise ValueError(f"ids must be a tensor of integers, not a {type(ids).__name__}: torch.tensor(ids)")
    if ids.dtype not in INTEGERS:
        raise ValueError(f"ids must be integers, not {ids.dtype}")
    if ops is not None and ids.dtype is not torch.uint64:
        return ops.array_of(_dense(ids, "ids").to(torch.int64).reshape(-1).contiguous())
    array: Any = _dense(ids, "ids").cpu().numpy()
    if array.dtype == np.uint64 and array.size and array.max() > INT64_MAX:
        raise ValueError(f"ids must fit into int64, and {array.max()} does not: view them as int64 or hash them")
    ids_K = np.ascontiguousarray(array.reshape(-1), np.int64)
    return ids_K if ops is None else ops.put(ids_K)[0]


def check_capacity(name: str, capacity: Any) -> None:
    if isinstance(capacity, bool) or not isinstance(capacity, int | str):
        raise ValueError(f"{name} must be a number of rows or a size such as '2GiB', not {capacity!r}")


def size_of(name: str, size: Any) -> int:
    """The bytes of a size such as "2GiB"."""
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise ValueError(f"{name} must be a size such as '2GiB' or a number of bytes, not {size!r}")
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def host_rows_of(capacity: Any, config: TableConfig) -> int:
    """The rows of a host tier of so many rows, in whole buckets, or of so many bytes."""
    check_capacity("host_capacity", capacity)
    ops = backend("cpu")
    if isinstance(capacity, int):
        if capacity < 1:
            raise ValueError(f"host_capacity must be at least 1 row, not {capacity}")
        return -(-capacity // ops.width) * ops.width
    layout = config.layout
    num_rows = HostTier.rows_of_bytes(size_of("host_capacity", capacity), layout, ops)
    if num_rows < ops.width:
        raise ValueError(f"host_capacity = {capacity} is too small for a bucket of {ops.width} rows")
    return num_rows


def scores_of(scores: Any, ids: torch.Tensor, *, takes_scores: bool, ops: Ops) -> Array | None:
    """The scores, flattened; None if there are none."""
    if scores is None:
        return None
    if not takes_scores:
        raise ValueError('scores need eviction="custom": leave them out')
    if not isinstance(scores, torch.Tensor) or scores.shape != ids.shape or scores.dtype is torch.bool:
        given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ValueError(f"scores must be a tensor of numbers in the shape of ids, {tuple(ids.shape)}, not {given}")
    return ops.array_of(_dense(scores, "scores").to(torch.float32).reshape(-1).contiguous())


def bags_of(ids: torch.Tensor, offsets: torch.Tensor | None, mode: str) -> Array:
    """Where each bag begins, and where the last one ends, on the host: rows of 2-D ids, or 1-D ids cut at offsets."""
    if mode not in POOLING_MODES:
        raise ValueError(f"mode must be one of {', '.join(POOLING_MODES)}, not {mode!r}")
    if offsets is None:
        if ids.ndim != 2:
            raise ValueError(f"pooled ids must be 2-D, or 1-D with offsets, not of shape {tuple(ids.shape)}")
        return np.arange(ids.shape[0] + 1) * ids.shape[1]
    if ids.ndim != 1:
        raise ValueError(f"with offsets ids must be 1-D, not of shape {tuple(ids.shape)}")
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in INTEGERS or offsets.ndim != 1:
        raise ValueError("offsets must be a 1-D tensor of integers: where each bag begins in ids")
    starts_B = ids_of(offsets)
    offsets_B1 = np.append(starts_B, len(ids))
    if (starts_B[:1] != 0).any() or (np.diff(offsets_B1) < 0).any() or (len(ids) and not len(starts_B)):
        raise ValueError(f"offsets must begin with 0 and never decrease, up to the number of ids, {len(ids)}")
    return offsets_B1


def _dense(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise ValueError(f"{name} must be a dense tensor with data, not {tensor.layout} on {tensor.device}")
    return tensor.detach()
