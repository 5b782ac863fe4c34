"""The rows that a model gets in inference, where rows are read and none is created."""

# K keys of one call, D dimension
from collections.abc import Callable

import numpy as np
import torch

from springtide.embeddings.eviction_policy import ScoredRows
from springtide.embeddings.lookup.read_only import KNOWN, NOT_ADMITTED
from springtide.embeddings.rows import Int64Array, Rows
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array
from springtide_client.keys import SHARED_ROW_OFFSET

FEATURE = 0  # the only feature of a module's table


def features_of(ops: Ops, ids_K: Array) -> Array:
    return ops.xp.full(len(ids_K), FEATURE, np.uint16)


def inference_rows(table: EmbeddingTable, ids_K: Array) -> tuple[Array, Array]:
    """The rows (K, D), and their status (K).

    An id without a row gets the shared row if it is not admitted yet, else the values it would be created with.
    """
    ops, xp = table.ops, table.ops.xp
    rows_KD, status_K = table.find(features_of(ops, ids_K), ids_K)
    rowless = xp.flatnonzero(status_K != KNOWN)
    if len(rowless):
        not_admitted = rowless[status_K[rowless] == NOT_ADMITTED]
        ids_N = ids_K[rowless]
        rows_KD[rowless] = initial_rows(table, features_of(ops, ids_N), ids_N)
        if len(not_admitted):
            shared_1, zero_1 = xp.full(1, FEATURE + SHARED_ROW_OFFSET, np.uint16), xp.zeros(1, np.int64)
            shared_1D, status_1 = table.find(shared_1, zero_1)
            rows_KD[not_admitted] = shared_1D if status_1[0] == KNOWN else initial_rows(table, shared_1, zero_1)
    return rows_KD, status_K


def rows_where(predicate: Callable[[ScoredRows], torch.Tensor], rows: Rows) -> Int64Array:
    """The ids of the rows for which a predicate is true; not of the shared row."""
    rows = rows.take(rows.features == FEATURE)
    columns = (rows.ids, rows.values, rows.states, rows.counts, rows.last_seen)
    with torch.no_grad():
        chosen_N = predicate(ScoredRows(*map(torch.from_numpy, columns)))
    if not isinstance(chosen_N, torch.Tensor) or chosen_N.dtype != torch.bool or chosen_N.shape != (len(rows),):
        given = f"{chosen_N.dtype} {tuple(chosen_N.shape)}" if isinstance(chosen_N, torch.Tensor) else chosen_N
        raise ValueError(f"a predicate must be one bool a row, a tensor ({len(rows)},), not {given!r}")
    return np.ascontiguousarray(rows.ids[chosen_N.cpu().numpy()])


def initial_rows(table: EmbeddingTable, features_N: Array, ids_N: Array) -> Array:
    """The values with which the table would create these keys, rounded to its dtype."""
    config, ops = table.config, table.ops
    values_ND = ops.initial_values(features_N, ids_N, config.dim, table.seed, config.init_scale)
    if config.dtype == "bfloat16":
        return ops.array_of(ops.tensor_of(values_ND).to(torch.bfloat16).to(torch.float32))
    return values_ND
