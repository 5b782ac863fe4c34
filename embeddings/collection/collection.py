"""Several embedding tables as one: the rows of a feature are in the table that holds it, as wide as that table's rows.

What one model sees has one width, the widest: narrower rows end in zeros, and gradients of those zeros are dropped.
"""

# K keys of a batch, U unique keys, T tables, F feature numbers, D widest dimension, S widest state
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from springtide.embeddings.collection.keys import (
    CollectionLookup,
    CollectionPrefetch,
    HeldKeys,
    TableKeys,
    TableLookup,
    held_keys,
    joined_keys,
)
from springtide.embeddings.collection.limits import limits_of_tables, share_disk, table_configs
from springtide.embeddings.config import TableConfig, TableLimits
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.lookup.handle import Lookup, LookupSlice
from springtide.embeddings.lookup.prefetch import Prefetch
from springtide.embeddings.policy.admission import AdmissionControl, SketchInfo
from springtide.embeddings.rows import Int64Array, UInt16Array, as_keys
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, RowColumns, RowLayout
from springtide_client.rows.table_names import MAIN_TABLE, TableNames

UInt8Array = npt.NDArray[np.uint8]


class EmbeddingCollection:
    """Has the methods of an EmbeddingTable that training uses, and routes keys by their features.

    The tables share one admission sketch, that of the main table. Plain tables, whose rows no model sees, are looked up
    by themselves, in `tables`; where only the main one is left, its look-ups are those of that table.
    """

    def __init__(self, config: TableConfig, tables: Mapping[str, EmbeddingTable]) -> None:
        """`tables` by name, the main one ("") first; `config.tables` says which features the others hold."""
        self.config, self.tables = config, dict(tables)
        self.names = TableNames({name: table.features for name, table in config.tables.items() if name != MAIN_TABLE})
        assert tuple(self.tables) == self.names.names
        self.main = self.tables[MAIN_TABLE]
        self.ops, self.tracked = self.main.ops, self.main.tracked
        seen = tables_of_model(self).values()
        self.dim = max(table.dim for table in seen)
        self._is_divided = len(seen) > 1
        widths = [table.layout.state_width - table.layout.wide_width for table in seen]
        wide_width = self.main.layout.wide_width
        self.layout = RowLayout(self.dim, max(widths) + wide_width, config.dtype, wide_width)
        (self._places_F,) = self.ops.put(self.names.places_F)
        self._failed: tuple[tuple[Array, ...], list[TableLookup]] = (), []  # a try's keys, and its open lookups
        share_disk(config, self.tables)

    @property
    def lr(self) -> float:
        """The learning rate of the main table."""
        return self.main.lr

    @property
    def step_lr(self) -> float:
        """The learning rate of the main table's next update."""
        return self.main.step_lr

    @property
    def lr_factor(self) -> float:
        """What a schedule multiplies every table's learning rate by."""
        return self.main.lr_factor

    @lr_factor.setter
    def lr_factor(self, factor: float) -> None:
        for table in self.tables.values():
            table.lr_factor = factor

    # training and reading

    def advance(self, event_ms: int, num_samples: int) -> None:
        """Before a batch: see EmbeddingTable.advance."""
        for table in self.tables.values():
            table.advance(event_ms, num_samples)

    @on_current_stream
    def prefetch(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> CollectionPrefetch | Prefetch:
        """Start to recall the next batch's rows. Pass the result to the next lookup, with the same three arrays."""
        if not self._is_divided:
            return self.main.prefetch(features_K, ids_K, event_ms_K)
        keys_K = features_K, ids_K, event_ms_K
        parts = [
            (keys, self.tables[keys.name].prefetch(keys.features_M, keys.ids_M, keys.event_ms_M))
            for keys in self._split(*keys_K)
        ]
        return CollectionPrefetch(keys_K, tuple(parts))

    @on_current_stream
    def lookup(
        self,
        features_K: Array,
        ids_K: Array,
        event_ms_K: Array,
        *,
        scores_K: Array | None = None,
        prefetched: CollectionPrefetch | Prefetch | None = None,
    ) -> Lookup:
        """Make every key's row resident and pin it, in its table.

        SpillError leaves the lookups of the tables before the one that failed open: the next call with these keys goes
        on from there, so that rows created for the first try are still new to admission.
        """
        if not isinstance(prefetched, CollectionPrefetch) and not self._is_divided:
            return self.main.lookup(features_K, ids_K, event_ms_K, scores_K=scores_K, prefetched=prefetched)
        keys_K = features_K, ids_K, event_ms_K
        if prefetched is None:
            prefetches: Sequence[tuple[TableKeys, Prefetch | None]]
            prefetches = [(keys, None) for keys in self._split(*keys_K)]
        else:
            assert isinstance(prefetched, CollectionPrefetch)
            given = zip(prefetched.keys_K, keys_K, strict=True)
            if not all(before is now for before, now in given):
                raise ValueError("these are not the keys that were prefetched: pass the same arrays")
            prefetches = prefetched.parts
        parts = self._failed_try(keys_K)
        try:
            for keys, prefetch in prefetches[len(parts) :]:
                scores_M = None if scores_K is None else scores_K[keys.positions_M]
                lookup = self.tables[keys.name].lookup(
                    keys.features_M, keys.ids_M, keys.event_ms_M, scores_K=scores_M, prefetched=prefetch
                )
                parts.append((keys, lookup))
        except BaseException:
            self._failed = tuple(array.copy() for array in keys_K), parts
            raise
        return CollectionLookup(parts, joined_keys(self.ops, parts, len(ids_K)))

    def gather(self, lookup: Lookup) -> Array:
        """Copies of the rows of a lookup's keys, (K, D); NaN for keys forgotten since."""
        return self.gather_slice(lookup, LookupSlice(0, len(lookup)))[0]

    @on_current_stream
    def gather_slice(self, lookup: Lookup, part: LookupSlice) -> tuple[Array, Array | None]:
        """The rows of some keys, or of bags of one feature's keys: see EmbeddingTable.gather_slice."""
        if not self._is_divided:
            return self.main.gather_slice(lookup, part)
        held = held_keys(self.ops, self._parts(lookup), part.start, part.stop)
        if part.offsets_B1 is not None:
            return self._gather_bags(held, part)
        out_KD = self.ops.xp.zeros((part.stop - part.start, self.dim), np.float32)
        for (keys, one), start, stop in held:
            rows_MD, _ = self.tables[keys.name].gather_slice(one, LookupSlice(start, stop))
            out_KD[keys.positions_M[start:stop] - part.start, : rows_MD.shape[1]] = rows_MD
        return out_KD, None

    @on_current_stream
    def update(
        self, lookup: Lookup, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None:
        """Update the rows of each table, and release the lookup: see EmbeddingTable.update."""
        if not self._is_divided:
            self.main.update(lookup, grads_BD, bags_K, scales_K)
            return
        try:
            for keys, one in self._parts(lookup):
                table = self.tables[keys.name]
                grads_Bd = self.ops.xp.ascontiguousarray(grads_BD[:, : table.dim])
                bags_M = keys.positions_M if bags_K is None else bags_K[keys.positions_M]
                scales_M = None if scales_K is None else scales_K[keys.positions_M]
                table.update(one, grads_Bd, bags_M, scales_M)
        finally:
            lookup.release()

    @on_current_stream
    def read_rows(self, lookup: Lookup) -> RowColumns:
        """Copies of the rows of a lookup's unique keys: see EmbeddingTable.read_rows.

        Values (U, D) end in zeros where rows are narrower. States (U, S): the optimizer's, zeros, the wide columns.
        """
        if not self._is_divided:
            return self.main.read_rows(lookup)
        parts, layout, xp = self._parts(lookup), self.layout, self.ops.xp
        num, wide = len(lookup.unique.ids_U), layout.wide_width
        values_UD, states_US = xp.zeros((num, self.dim), np.float32), xp.zeros((num, layout.state_width), np.float32)
        known: list[tuple[Array, ...]] = []
        start = 0
        for keys, one in parts:
            table = self.tables[keys.name]
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
    def write_rows(self, lookup: Lookup, values_UD: Array, states_US: Array) -> None:
        """Write values and states back as `read_rows` gave them: what lies beyond a table's rows is dropped."""
        if not self._is_divided:
            self.main.write_rows(lookup, values_UD, states_US)
            return
        xp, layout, start = self.ops.xp, self.layout, 0
        for keys, one in self._parts(lookup):
            table = self.tables[keys.name]
            rows = slice(start, start + len(one.unique.ids_U))
            own = table.layout.state_width - table.layout.wide_width
            parts = [states_US[rows, :own]]
            if table.layout.wide_width:
                parts.append(states_US[rows, layout.state_width - layout.wide_width :])
            values_Ud = xp.ascontiguousarray(values_UD[rows, : table.dim])
            table.write_rows(one, values_Ud, xp.ascontiguousarray(xp.concatenate(parts, axis=1)))
            start = rows.stop

    def touch(self, lookup: Lookup) -> None:
        """Count a lookup's occurrences without a gradient, and release it."""
        if not self._is_divided:
            self.main.touch(lookup)
            return
        for keys, one in self._parts(lookup):
            self.tables[keys.name].touch(one)
        lookup.release()

    @on_current_stream
    def find(self, features_K: Array, ids_K: Array) -> tuple[Array, Array]:
        """The rows, (K, D), NaN for keys without one, and their status, (K): see EmbeddingTable.find."""
        features_K, ids_K = self.ops.put(*as_keys(features_K, ids_K, ids_K)[:2])
        xp = self.ops.xp
        parts = self._split(features_K, ids_K, ids_K)
        widest = max([self.dim, *(self.tables[keys.name].dim for keys in parts)])
        out_KD, status_K = xp.zeros((len(ids_K), widest), np.float32), xp.zeros(len(ids_K), np.uint8)
        for keys in parts:
            rows_MD, status_M = self.tables[keys.name].find(keys.features_M, keys.ids_M)
            out_KD[keys.positions_M, : rows_MD.shape[1]] = rows_MD
            status_K[keys.positions_M] = status_M
        out_KD[status_K != 0] = np.nan
        return out_KD, status_K

    # versions and rows that do not come from training

    def needs_checkpoint(self, num_keys: int) -> bool:
        """Return True if a batch of this many keys may only be looked up after the tables' `take_delta`.

        Plain tables, which are looked up by themselves, are asked by themselves.
        """
        return any(table.needs_checkpoint(num_keys) for table in tables_of_model(self).values())

    def has_room(self, num_keys: int, wait_seconds: float = 0.0) -> bool:
        """Return True if each spill can take what a batch of this many keys may evict: see EmbeddingTable.has_room."""
        return all(table.has_room(num_keys, wait_seconds) for table in tables_of_model(self).values())

    def take_sketch_delta(self) -> tuple[Int64Array, UInt8Array]:
        """The blocks of the admission sketch that changed since the last call, and their bytes, (B, 64)."""
        return self.main.take_sketch_delta()

    def sketch(self) -> SketchInfo:
        return self.main.sketch()

    def restore_sketch(self, blocks_B: Int64Array, bytes_B64: UInt8Array) -> None:
        """Apply the sketch blocks of a version or a base."""
        self.main.restore_sketch(blocks_B, bytes_B64)

    def clock_state(self) -> dict[str, Any]:
        """What a version contains besides rows, sketch and expiry cutoffs, as JSON, of every table."""
        others = {name: table.clock_state() for name, table in self.tables.items() if name != MAIN_TABLE}
        return {**self.main.clock_state(), "tables": others}

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Apply what `clock_state` returned. A table that was not there then begins with the main one's clock."""
        others = state.get("tables", {})
        own = {name: value for name, value in state.items() if name != "tables"}
        for name, table in self.tables.items():
            table.restore_clock_state(own if name == MAIN_TABLE else others.get(name, {**own, "sweep": 0}))

    @property
    def expiry_cutoffs(self) -> dict[int, int]:
        """By feature, in ms of event time: rows last seen before have expired."""
        cutoffs: dict[int, int] = {}
        for table in self.tables.values():
            for feature, ms in table.expiry_cutoffs.items():
                cutoffs[feature] = max(ms, cutoffs.get(feature, 0))
        return cutoffs

    def raise_expiry_cutoffs(self, cutoffs: Mapping[int, int]) -> None:
        """Let rows expire in every tier; a cutoff never falls."""
        for name, table in self.tables.items():
            table.raise_expiry_cutoffs({f: ms for f, ms in cutoffs.items() if self.names.name_of(f) == name})

    @property
    def num_removals(self) -> int:
        """Changes whenever rows leave memory or change slots other than for a lookup."""
        return sum(table.num_removals for table in self.tables.values())

    def forget(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Delete the rows of these keys from every tier. The next delta forgets them too."""
        features_N, ids_N, _ = as_keys(features_N, ids_N, ids_N)
        for name, table in self.tables.items():
            held_N = self.names.holds(name, features_N)
            if held_N.any():
                table.forget(features_N[held_N], ids_N[held_N])

    # limits and statistics

    def set_limits(self, limits: TableLimits) -> None:
        """Apply limits now. ValueError, and nothing changes, if one is invalid or lookups are open during a resize."""
        by_table = limits_of_tables(self.config, limits, self.tables, self.names)
        for name, table in self.tables.items():
            table.set_limits(by_table[name])
        given = {"device_bytes": limits.device_bytes, "disk_bytes": limits.disk_bytes}
        self.config = replace(self.config, **{key: value for key, value in given.items() if value is not None})

    def counters(self) -> dict[str, int]:
        """Counts since the tables were made, by name, of all tables."""
        return _summed(table.counters() for table in self.tables.values())

    def rows_by_tier(self) -> dict[str, int]:
        """Rows in the tiers `device`, `disk`, and `host` if there is a host tier."""
        return _summed(table.rows_by_tier() for table in self.tables.values())

    def bytes_by_tier(self) -> dict[str, int]:
        """Bytes of the same tiers: see EmbeddingTable.bytes_by_tier."""
        sizes = _summed(table.bytes_by_tier() for table in self.tables.values())
        sizes["device"] -= (len(self.tables) - 1) * self.main.parts.admission.num_bytes()  # the sketch is one
        return sizes

    def stall_reason(self) -> str:
        """Why a call has been waiting for a spill for more than a second; empty if none has. Any thread."""
        return next(filter(None, (table.stall_reason() for table in self.tables.values())), "")

    def check_integrity(self) -> None:
        """AssertionError if the parts contradict each other. Reads every row."""
        for table in self.tables.values():
            table.check_integrity()

    def close(self) -> None:
        for table in self.tables.values():
            table.close()

    def _split(self, features_K: Array, ids_K: Array, event_ms_K: Array) -> list[TableKeys]:
        """The keys of each table that has any; on a device this waits for it."""
        features_K, ids_K, event_ms_K = as_keys(features_K, ids_K, event_ms_K)
        is_on_host = isinstance(features_K, np.ndarray)
        xp: Any = np if is_on_host else self.ops.xp
        places_K = (self.names.places_F if is_on_host else self._places_F)[features_K]
        found = []
        for place, name in enumerate(self.names.names):
            at_M = xp.flatnonzero(places_K == place)
            if len(at_M) or (name == MAIN_TABLE and not len(ids_K)):
                (positions_M,) = self.ops.put(at_M)
                found.append(TableKeys(name, positions_M, features_K[at_M], ids_K[at_M], event_ms_K[at_M]))
        return found

    def _failed_try(self, keys_K: tuple[Array, ...]) -> list[TableLookup]:
        """Return the lookups that a failed try of the same keys left open; release those of others."""
        (failed_K, parts), self._failed = self._failed, ((), [])
        if failed_K and all(self.ops.xp.array_equal(a, b) for a, b in zip(failed_K, keys_K, strict=True)):
            return parts
        for _, lookup in parts:
            lookup.release()
        return []

    def _parts(self, lookup: Lookup) -> tuple[TableLookup, ...]:
        assert isinstance(lookup, CollectionLookup)
        if lookup.released:
            raise ValueError("this lookup has been released (it takes one update): look the keys up again")
        return lookup.parts

    def _gather_bags(self, held: Sequence[HeldKeys], part: LookupSlice) -> tuple[Array, Array | None]:
        assert part.offsets_B1 is not None
        if len(held) > 1:
            raise ValueError("bags hold keys of one feature: pool those of several features apart")
        xp, num_bags = self.ops.xp, len(part.offsets_B1) - 1
        out_BD = xp.zeros((num_bags, self.dim), np.float32)
        winners_BD = xp.full((num_bags, self.dim), -1, np.int64) if part.mode == "max" else None
        for (keys, one), start, stop in held:
            rows_Bd, winners_Bd = self.tables[keys.name].gather_slice(one, part._replace(start=start, stop=stop))
            out_BD[:, : rows_Bd.shape[1]] = rows_Bd
            if winners_BD is not None and winners_Bd is not None:
                winners_BD[:, : rows_Bd.shape[1]] = winners_Bd
        return out_BD, winners_BD


AnyTable = EmbeddingTable | EmbeddingCollection
MakeTable = Callable[[str, TableConfig, AdmissionControl | None], EmbeddingTable]


def open_tables(config: TableConfig, ops: Ops, make: MakeTable) -> AnyTable:
    """Make the tables of a configuration: one, or a collection. `make` gets a table's name, settings and admission."""
    tables: dict[str, EmbeddingTable] = {}
    try:
        for name, settings in table_configs(config, ops).items():
            tables[name] = make(name, settings, tables[MAIN_TABLE].parts.admission if tables else None)
        return EmbeddingCollection(config, tables) if config.tables else tables[MAIN_TABLE]
    except BaseException:
        for table in tables.values():
            table.close()
        raise


def tables_by_name(table: AnyTable) -> dict[str, EmbeddingTable]:
    """The tables by name, the main one ("") first."""
    return table.tables if isinstance(table, EmbeddingCollection) else {MAIN_TABLE: table}


def tables_of_model(table: AnyTable) -> dict[str, EmbeddingTable]:
    """The tables of the rows that a model sees, by name, the main one ("") first."""
    if not isinstance(table, EmbeddingCollection):
        return {MAIN_TABLE: table}
    return {name: one for name, one in table.tables.items() if not table.config.tables[name].is_plain}


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total
