"""The keys that the ranks ask an owner for, and what the owner does for them."""

# K occurrences of keys in all ranks' calls, P keys asked for, each once for each rank that asks; D dimension
from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.embeddings.lookup.handle import LookupSlice, TableLookup
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array


@dataclass(frozen=True)
class AskedKeys:
    """What the ranks ask one table for, as it is looked up: an entry for every occurrence in a rank's call.

    The last P are the keys as they came, rank 0's first; before them come their further occurrences.
    """

    num_asked: int  # P
    features_K: Array
    ids_K: Array
    event_ms_K: Array
    scores_K: Array | None = None

    @staticmethod
    def of(
        ops: Ops,
        num_occurrences: int,
        features_P: Array,
        ids_P: Array,
        event_ms_P: Array,
        occurrences_P: Array,
        scores_P: Array | None = None,
    ) -> "AskedKeys":
        """From the keys and how often each occurs in the call of the rank that asks; `num_occurrences`: in all, K."""
        xp, num_asked = ops.xp, len(ids_P)
        ends_P = xp.cumsum((occurrences_P - 1).astype(np.int64))
        more_K = ops.bags_of_keys(xp.concatenate([xp.zeros(1, np.int64), ends_P]), num_occurrences - num_asked)
        places_K = xp.concatenate([more_K, xp.arange(num_asked)])
        scores_K = None if scores_P is None else scores_P[places_K]
        return AskedKeys(len(ids_P), features_P[places_K], ids_P[places_K], event_ms_P[places_K], scores_K)

    @property
    def columns(self) -> tuple[Array, Array, Array]:
        """What a table looks up: features, ids, event times."""
        return self.features_K, self.ids_K, self.event_ms_K

    def of_asked(self, column_K: Any) -> Any:
        """Return the part of a column of K that belongs to the keys as they came, (P)."""
        return column_K[len(column_K) - self.num_asked :]

    def rows(self, table: EmbeddingTable, lookup: TableLookup) -> Array:
        """Return the row of each key asked for, (P, D)."""
        return table.gather_slice(lookup, LookupSlice(len(lookup) - self.num_asked, len(lookup)))[0]

    def update(self, table: EmbeddingTable, lookup: TableLookup, grads_PD: Array) -> None:
        """Sum the gradients of each key in the order of ranks, take one step for it, and count its occurrences."""
        xp, num_more = table.ops.xp, len(lookup) - self.num_asked
        # further occurrences have the gradient of the row of zeros
        grads_PD = xp.concatenate([grads_PD, xp.zeros((1, grads_PD.shape[1]), np.float32)])
        bags_K = xp.concatenate([xp.full(num_more, self.num_asked, np.int64), xp.arange(self.num_asked)])
        table.update(lookup, grads_PD, bags_K)
