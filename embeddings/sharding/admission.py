"""Admission of keys whose occurrences are in the calls of several ranks: their owners decide."""

# U unique keys of a call here, P keys of one table that the ranks ask this one for, T tables
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from springtide.embeddings.policy.admission import Decision, NotAdmitted, share_rows
from springtide.embeddings.sharding.asked_keys import AskedKeys
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.route import KeyRoute
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.types import UniqueKeys


def decide_together(
    exchange: Exchange,
    tables_T: Sequence[EmbeddingTable],
    unique: UniqueKeys,
    route: KeyRoute,
    asked_T: Sequence[AskedKeys],
) -> tuple[UniqueKeys, list[Decision | None]]:
    """Replace the keys of this rank that get no row of their own by the shared keys of their features, which are yet to
    be asked for: a shared row has an owner like any other. Return also what was decided here, by table. All ranks.
    """
    ops, xp = tables_T[0].ops, tables_T[0].ops.xp
    decisions_T: list[Decision | None] = []
    refused_T: list[Tensor] = []
    with exchange.failing_together():
        for table, asked in zip(tables_T, asked_T, strict=True):
            refused_P, decision = xp.zeros(asked.num_asked, np.uint8), None
            if table.parts.admission:
                asked_unique, decision = table.decide(*asked.columns)
                refused_V = xp.zeros(len(asked_unique.ids_U), np.uint8)
                refused_V[ops.put(decision.not_admitted.positions_N)[0]] = 1
                refused_P = refused_V[asked.of_asked(asked_unique.inverse_K)]
            decisions_T.append(decision)
            refused_T.append(ops.tensor_of(refused_P).reshape(-1, 1))
    refused_U = xp.zeros(len(unique.ids_U), np.uint8)
    for order, refused in zip(route.order_T, route.to_askers("admission", refused_T), strict=True):
        refused_U[ops.array_of(order)] = ops.array_of(refused)[:, 0]
    refused_N = ops.fetch(xp.flatnonzero(refused_U))[0]
    if len(refused_N):
        positions_N = ops.put(refused_N)[0]
        columns = unique.features_U, unique.occurrences_U, unique.last_seen_U
        not_admitted = NotAdmitted(refused_N, *ops.fetch(*(column[positions_N] for column in columns)))
        unique, _ = share_rows(ops, unique, not_admitted)
    return unique, decisions_T
