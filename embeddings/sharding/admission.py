"""Admission of keys whose occurrences are in the calls of several ranks: their owners decide."""

# U unique keys of a call here, P keys that the ranks request of one table here, T tables
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from springtide.embeddings.policy.admission import Decision, NotAdmitted, share_rows
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.route import KeyRoute, RequestedKeys
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.types import UniqueKeys


def decide_together(
    exchange: Exchange,
    tables_T: Sequence[EmbeddingTable],
    unique: UniqueKeys,
    route: KeyRoute,
    requested_T: Sequence[RequestedKeys],
) -> tuple[UniqueKeys, list[Decision | None]]:
    """Replace the keys of this rank that get no row of their own by the shared keys of their features, which are yet to
    be requested for: a shared row has an owner like any other. Return also what was decided here, by table. All ranks.
    """
    ops, xp = tables_T[0].ops, tables_T[0].ops.xp
    decisions_T: list[Decision | None] = []
    refused_T: list[Tensor] = []
    with exchange.failing_together():
        for table, requested in zip(tables_T, requested_T, strict=True):
            refused_P, decision = xp.zeros(len(requested.ids_P), np.uint8), None
            if table.parts.admission:
                requested_unique, decision = table.decide(*requested.columns, requested.occurrences)
                refused_V = xp.zeros(len(requested_unique.ids_U), np.uint8)
                refused_V[ops.put(decision.not_admitted.positions_N)[0]] = 1
                refused_P = refused_V[requested_unique.inverse_K]
            decisions_T.append(decision)
            refused_T.append(ops.tensor_of(refused_P).reshape(-1, 1))
    refused_U = xp.zeros(len(unique.ids_U), np.uint8)
    for order, refused in zip(route.order_T, route.to_requesters("admission", refused_T), strict=True):
        refused_U[ops.array_of(order)] = ops.array_of(refused)[:, 0]
    refused_N = ops.fetch(xp.flatnonzero(refused_U))[0]
    if len(refused_N):
        positions_N = ops.put(refused_N)[0]
        columns = unique.features_U, unique.occurrences_U, unique.last_seen_U
        not_admitted = NotAdmitted(refused_N, *ops.fetch(*(column[positions_N] for column in columns)))
        unique, _ = share_rows(ops, unique, not_admitted)
    return unique, decisions_T
