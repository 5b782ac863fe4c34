"""The handles of a look-up at the owners of its keys, and of a prefetch there."""

# K keys of a batch here, U unique ones, D dimension, S state columns, T tables
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from springtide.embeddings.lookup.handle import JoinedLookup, TableLookup
from springtide.embeddings.lookup.prefetch import Prefetch
from springtide.embeddings.sharding.route import KeyRoute, RequestedKeys
from springtide.kernels.types import Array, RowColumns, UniqueKeys


@dataclass(frozen=True)
class ShardedPrefetch:
    """The next batch's keys, at their owners already, and what these prefetch. Valid for a lookup of these arrays."""

    keys_K: tuple[Array, Array, Array]
    unique: UniqueKeys
    route: KeyRoute
    requested_T: list[RequestedKeys]
    prefetches_T: list[Prefetch | None]


class FetchedRows(NamedTuple):
    """Rows that the owners sent of this rank's unique keys; of each table here all columns of the rows requested."""

    rows_UD: Tensor  # float32
    states_US: Tensor  # the last states
    counts_U: Tensor
    columns_T: list[RowColumns]  # if the table keeps them: of the unique keys of its lookup


class ShardedLookup(JoinedLookup):
    """A lookup at the owners. `unique` has this rank's keys; `rows_UD` is a leaf whose gradient the owners will get."""

    def __init__(
        self,
        unique: UniqueKeys,
        route: KeyRoute,
        lookups_T: list[TableLookup],
        fetched: FetchedRows,
    ) -> None:
        super().__init__(unique, lookups_T)
        self.route, self.lookups_T = route, lookups_T
        self.rows_UD, self.states_US, self.counts_U, self.columns_T = fetched
