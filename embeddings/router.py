"""Routes a batch's keys to the tables that hold them: several tables of rows that one model sees look like one.

Rows have one width, the widest: narrower ones end in zeros, and gradients of those zeros are dropped.
"""

# K keys of a batch, U unique keys, M keys of one table, F feature numbers, D widest dimension, S widest state
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.lookup.handle import JoinedLookup, LookupSlice, StepTable, TableLookup
from springtide.embeddings.lookup.materialize import Fetch
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, RowColumns, RowLayout, UniqueKeys
from springtide_client.rows.table_names import MAIN_TABLE, TableNames


@dataclass(frozen=True)
class TableKeys:
    """The keys of a batch that one table holds."""

    table: EmbeddingTable
    positions_M: Array  # in K, ascending
    unique: UniqueKeys


HeldKeys = tuple[TableKeys, TableLookup, int, int]


class RoutedLookup(JoinedLookup):
    """A lookup in each table that holds some of the keys. `unique` has the keys of one table after another's."""

    def __init__(self, ops: Ops, keys: Sequence[TableKeys], lookups: Sequence[TableLookup], num_keys: int) -> None:
        super().__init__(_joined_keys(ops, keys, lookups, num_keys), lookups)
        self._by_table = tuple(zip(keys, lookups, strict=True))

    @property
    def by_table(self) -> tuple[tuple[TableKeys, TableLookup], ...]:
        """The keys of each table and its lookup. ValueError after a release."""
        if self.released:
            raise ValueError("this lookup has been released (it takes one update): look the keys up again")
        return self._by_table

    def held(self, start: int, stop: int) -> list[HeldKeys]:
        """The tables that hold some of the keys start..stop, and which of theirs these are: from one to another."""
        held = []
        for keys, lookup in self.by_table:
            first, last = (int((keys.positions_M < bound).sum()) for bound in (start, stop))
            if first < last:
                held.append((keys, lookup, first, last))
        return held


class Router(StepTable[RoutedLookup]):
    """Routes keys to tables by their features."""

    def __init__(self, tables: Mapping[str, EmbeddingTable], names: TableNames, layout: RowLayout) -> None:
        """`tables` by name, the main one ("") first. `names`: of all tables, says which features each holds."""
        self.tables, self.names, self.layout, self.dim = tables, names, layout, layout.dim
        self.ops = tables[MAIN_TABLE].ops
        (self._places_F,) = self.ops.put(names.places_F)

    def begin_fetch(self, unique: UniqueKeys) -> list[tuple[TableKeys, Fetch]]:
        return [(keys, keys.table.begin_fetch(keys.unique)) for keys in self.split(unique)]

    def lookup_unique(
        self,
        unique: UniqueKeys,
        *,
        scores_K: Array | None = None,
        fetch: Sequence[tuple[TableKeys, Fetch | None]] | None = None,
        num_occurrences: int | None = None,
    ) -> RoutedLookup:
        split = self.split(unique) if fetch is None or num_occurrences is not None else [keys for keys, _ in fetch]
        fetched = [None] * len(split) if fetch is None else [own for _, own in fetch]
        lookups = []
        for keys, own in zip(split, fetched, strict=True):
            scores_M = None if scores_K is None else scores_K[keys.positions_M]
            num = None if num_occurrences is None else int(keys.unique.occurrences_U.sum())
            lookups.append(keys.table.lookup_unique(keys.unique, scores_K=scores_M, fetch=own, num_occurrences=num))
        return RoutedLookup(self.ops, split, lookups, len(unique.inverse_K))

    @on_current_stream
    def gather_slice(self, lookup: RoutedLookup, part: LookupSlice) -> tuple[Array, Array | None]:
        """The rows of some keys, or of bags of one feature's keys."""
        held = lookup.held(part.start, part.stop)
        if part.offsets_B1 is not None:
            return self._gather_bags(held, part)
        out_KD = self.ops.xp.zeros((part.stop - part.start, self.dim), np.float32)
        for keys, one, start, stop in held:
            rows_MD, _ = keys.table.gather_slice(one, LookupSlice(start, stop))
            out_KD[keys.positions_M[start:stop] - part.start, : rows_MD.shape[1]] = rows_MD
        return out_KD, None

    @on_current_stream
    def update(
        self, lookup: RoutedLookup, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None:
        try:
            for keys, one in lookup.by_table:
                table = keys.table
                grads_Bd = self.ops.xp.ascontiguousarray(grads_BD[:, : table.dim])
                bags_M = keys.positions_M if bags_K is None else bags_K[keys.positions_M]
                scales_M = None if scales_K is None else scales_K[keys.positions_M]
                table.update(one, grads_Bd, bags_M, scales_M)
        finally:
            lookup.release()

    @on_current_stream
    def read_rows(self, lookup: RoutedLookup) -> RowColumns:
        """Values (U, D) end in zeros where rows are narrower. States (U, S): the optimizer's, zeros, wide columns."""
        layout, xp = self.layout, self.ops.xp
        num, wide = len(lookup.unique.ids_U), layout.wide_width
        values_UD, states_US = xp.zeros((num, self.dim), np.float32), xp.zeros((num, layout.state_width), np.float32)
        known: list[tuple[Array, ...]] = []
        start = 0
        for keys, one in lookup.by_table:
            table = keys.table
            columns = table.read_rows(one)
            rows = slice(start, start + len(columns.counts_N))
            values_UD[rows, : table.dim] = columns.values_ND
            own = table.layout.state_width - table.layout.wide_width
            states_US[rows, :own] = columns.states_NS[:, :own]
            if table.layout.wide_width:
                states_US[rows, layout.state_width - wide :] = columns.states_NS[:, own:]
            known.append(columns[2:])
            start = rows.stop
        return RowColumns(values_UD, states_US, *(xp.concatenate(column) for column in zip(*known, strict=True)))

    @on_current_stream
    def write_rows(self, lookup: RoutedLookup, values_UD: Array, states_US: Array) -> None:
        """What lies beyond a table's rows is dropped."""
        xp, layout, start = self.ops.xp, self.layout, 0
        for keys, one in lookup.by_table:
            table = keys.table
            rows = slice(start, start + len(one.unique.ids_U))
            own = table.layout.state_width - table.layout.wide_width
            columns = [states_US[rows, :own]]
            if table.layout.wide_width:
                columns.append(states_US[rows, layout.state_width - layout.wide_width :])
            values_Ud = xp.ascontiguousarray(values_UD[rows, : table.dim])
            table.write_rows(one, values_Ud, xp.ascontiguousarray(xp.concatenate(columns, axis=1)))
            start = rows.stop

    def touch(self, lookup: RoutedLookup) -> None:
        for keys, one in lookup.by_table:
            keys.table.touch(one)
        lookup.release()

    def split(self, unique: UniqueKeys) -> list[TableKeys]:
        """The keys of each table that has any; on a device this waits for it."""
        xp, places_U = self.ops.xp, self._places_F[unique.features_U]
        places_K, found = places_U[unique.inverse_K], []
        for place, name in enumerate(self.names.names):
            is_here_U = places_U == place
            at_M = xp.flatnonzero(is_here_U)
            if len(at_M) or (name == MAIN_TABLE and not len(places_U)):
                positions_M = xp.flatnonzero(places_K == place)
                inverse_M = (xp.cumsum(is_here_U) - 1)[unique.inverse_K[positions_M]]
                columns = [column[at_M] for column in unique._replace(inverse_K=places_U)]
                own = UniqueKeys(*columns)._replace(inverse_K=inverse_M)
                found.append(TableKeys(self.tables[name], positions_M, own))
        return found

    def _gather_bags(self, held: Sequence[HeldKeys], part: LookupSlice) -> tuple[Array, Array | None]:
        assert part.offsets_B1 is not None
        if len(held) > 1:
            raise ValueError("bags hold keys of one feature: pool those of several features apart")
        xp, num_bags = self.ops.xp, len(part.offsets_B1) - 1
        out_BD = xp.zeros((num_bags, self.dim), np.float32)
        winners_BD = xp.full((num_bags, self.dim), -1, np.int64) if part.mode == "max" else None
        for keys, one, start, stop in held:
            rows_Bd, winners_Bd = keys.table.gather_slice(one, part._replace(start=start, stop=stop))
            out_BD[:, : rows_Bd.shape[1]] = rows_Bd
            if winners_BD is not None and winners_Bd is not None:
                winners_BD[:, : rows_Bd.shape[1]] = winners_Bd
        return out_BD, winners_BD


def _joined_keys(ops: Ops, keys: Sequence[TableKeys], lookups: Sequence[TableLookup], num_keys: int) -> UniqueKeys:
    """The unique keys of all tables, one table's after another's."""
    xp = ops.xp
    inverse_K, start = xp.zeros(num_keys, np.int64), 0
    for own, lookup in zip(keys, lookups, strict=True):
        inverse_K[own.positions_M] = lookup.unique.inverse_K + start
        start += len(lookup.unique.ids_U)
    joined = {
        name: xp.concatenate([getattr(lookup.unique, name) for lookup in lookups])
        for name in UniqueKeys._fields
        if name != "inverse_K"
    }
    return UniqueKeys(**joined, inverse_K=inverse_K)
