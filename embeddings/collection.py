"""Several embedding tables as one: the rows of a feature are in the table that holds it, of that table's width."""

# K keys of a batch, D widest dimension
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from springtide.embeddings.config import FeatureTable, TableConfig, TableLimits
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.lookup.handle import StepTable
from springtide.embeddings.memory.capacity import Capacity, sketch_bytes
from springtide.embeddings.optimizer import RowOptimizer
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.router import Router
from springtide.embeddings.rows import Int64Array, UInt16Array, as_keys
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.interface import Spill
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, RowLayout
from springtide_client.rows.table_names import MAIN_TABLE, TableNames
from springtide_client.system.settings import format_size

KIB, MAX_KIB = 1 << 10, 1 << 30
PLAIN_SHARE = 2  # a table that no model sees gets half of the memory, and at most half of the disk


class EmbeddingCollection:
    """Has the methods of an EmbeddingTable that training uses, for all tables; a model's step looks up in `rows`.

    The tables share one admission sketch, that of the main table. Plain tables, whose rows no model sees, are looked up
    by themselves, in `tables`.
    """

    def __init__(self, config: TableConfig, tables: Mapping[str, EmbeddingTable]) -> None:
        """`tables` by name, the main one ("") first; `config.tables` says which features the others hold."""
        self.config, self.tables = config, dict(tables)
        self.names = TableNames({name: table.features for name, table in config.tables.items() if name != MAIN_TABLE})
        assert tuple(self.tables) == self.names.names
        self.main = self.tables[MAIN_TABLE]
        self.ops, self.tracked, self.admission = self.main.ops, self.main.tracked, self.main.admission
        self.model_tables = {name: one for name, one in self.tables.items() if not config.tables[name].is_plain}
        self.dim = max(table.dim for table in self.model_tables.values())
        widths = [table.layout.state_width - table.layout.wide_width for table in self.model_tables.values()]
        wide_width = self.main.layout.wide_width
        self.layout = RowLayout(self.dim, max(widths) + wide_width, config.dtype, wide_width)
        self._router = Router(self.tables, self.names, self.layout)
        # what a model's step looks up in
        self.rows: StepTable[Any] = self.main if len(self.model_tables) == 1 else self._router
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
        """The factor of a schedule for every table's learning rate."""
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
    def find(self, features_K: Array, ids_K: Array) -> tuple[Array, Array]:
        """The rows, (K, D), NaN for keys without one, and their status, (K): see EmbeddingTable.find."""
        xp, held = self.ops.xp, self._router.split(self._router.unique(features_K, ids_K, ids_K))
        widest = max([self.dim, *(keys.table.dim for keys in held)])
        out_KD, status_K = xp.zeros((len(ids_K), widest), np.float32), xp.zeros(len(ids_K), np.uint8)
        for keys in held:
            rows_MD, status_M = keys.table.find_unique(keys.unique)
            out_KD[keys.positions_M, : rows_MD.shape[1]] = rows_MD
            status_K[keys.positions_M] = status_M
        out_KD[status_K != 0] = np.nan
        return out_KD, status_K

    # versions and rows that do not come from training

    def has_room(self, num_keys: int, wait_seconds: float = 0.0) -> bool:
        """Return True if each spill can take what a batch of this many keys may evict: see EmbeddingTable.has_room.

        Plain tables, which are looked up by themselves, are asked by themselves.
        """
        return all(table.has_room(num_keys, wait_seconds) for table in self.model_tables.values())

    def clock_state(self) -> dict[str, Any]:
        """The state of every table besides rows, sketch and expiry cutoffs, as a version contains it: JSON."""
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
        sizes["device"] -= (len(self.tables) - 1) * self.main.admission.num_bytes()  # the sketch is one
        return sizes

    def stall_reason(self) -> str:
        """Why a call has been waiting for a spill for more than a second; empty if none has. Any thread."""
        return next(filter(None, (table.stall_reason() for table in self.tables.values())), "")

    def check_integrity(self) -> None:
        """AssertionError if the components of a table contradict each other. Reads every row."""
        for table in self.tables.values():
            table.check_integrity()

    def close(self) -> None:
        for table in self.tables.values():
            table.close()


AnyTable = EmbeddingTable | EmbeddingCollection
MakeTable = Callable[[str, TableConfig, AdmissionControl | None], EmbeddingTable]


def open_tables(config: TableConfig, ops: Ops, make: MakeTable) -> AnyTable:
    """Make the tables of a configuration: one, or a collection. `make` gets a table's name, settings and admission."""
    tables: dict[str, EmbeddingTable] = {}
    try:
        for name, settings in table_configs(config, ops).items():
            tables[name] = make(name, settings, tables[MAIN_TABLE].admission if tables else None)
        return EmbeddingCollection(config, tables) if config.tables else tables[MAIN_TABLE]
    except BaseException:
        for table in tables.values():
            table.close()
        raise


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return total


# how several tables share memory and disk, and which of them a limit concerns


def table_configs(config: TableConfig, ops: Ops) -> dict[str, TableConfig]:
    """Return the settings of each table, the main one first: `config` itself if there is no other.

    The main table keeps the policies of all features, because it admits the ids of all; but not how long rows of plain
    tables live: it would search its own for them.
    """
    if not config.tables:
        return {MAIN_TABLE: config}
    shares = device_shares(config, ops)
    plain = {number for table in config.tables.values() if table.is_plain for number in table.features}
    policies = {
        number: replace(policy, ttl_seconds=None) if number in plain else policy
        for number, policy in config.features.items()
    }
    configs = {MAIN_TABLE: replace(config, device_bytes=shares[MAIN_TABLE], tables={}, features=policies)}
    for name, table in config.tables.items():
        if name != MAIN_TABLE:
            features = {
                number: replace(config.features[number], min_count=None)
                for number in table.features
                if number in config.features
            }
            configs[name] = replace(
                _with_rows_of(config, table), device_bytes=shares[name], admission={"min_count": 1}, features=features
            )
    return configs


def check_device_bytes(config: TableConfig, ops: Ops) -> None:
    """ValueError if `device_bytes` has no room for a bucket of rows in each table; it names the least that has."""
    if (error := _room_error(config, ops)) is None:
        return
    too_small, enough = config.device_bytes // KIB, max(1, config.device_bytes // KIB)
    while _room_error(replace(config, device_bytes=enough * KIB), ops) is not None:
        if enough > MAX_KIB:
            raise error
        too_small, enough = enough, 2 * enough
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        lacks_room = _room_error(replace(config, device_bytes=middle * KIB), ops) is not None
        too_small, enough = (middle, enough) if lacks_room else (too_small, middle)
    given, least = format_size(config.device_bytes), format_size(enough * KIB)
    raise ValueError(f"device_bytes = {given} is too small: these tables need at least {least}")


def _room_error(config: TableConfig, ops: Ops) -> ValueError | None:
    try:
        for own in table_configs(config, ops).values():
            Capacity.of_bytes(own, ops)
    except ValueError as error:
        return error
    return None


def _with_rows_of(config: TableConfig, table: FeatureTable) -> TableConfig:
    """Return the settings with the rows of one table."""
    optimizer = config.optimizer if table.optimizer is None else table.optimizer
    own = replace(config, dim=table.dim, optimizer=optimizer, tables={})
    if not table.is_plain:
        return own
    return replace(own, init_scale=0.0, dtype="float32", wide_width=0, eviction="lru", host_bytes=0)


def device_shares(config: TableConfig, ops: Ops) -> dict[str, int]:
    """Divide `device_bytes`: half to a plain table without its own, of the rest as many rows to every feature.

    The admission sketch, which is in the main table, is paid for by all of them.
    """
    sketch = sketch_bytes(config)
    for_rows = max(0, config.device_bytes - sketch)
    plain, own = {}, {}
    for name, table in config.tables.items():
        if table.device_bytes is not None:
            own[name] = table.device_bytes
        elif table.is_plain:
            plain[name] = for_rows // PLAIN_SHARE
    weights = {
        name: ops.slot_bytes(_with_rows_of(config, table).layout) * max(1, len(table.features))
        for name, table in config.tables.items()
        if name not in plain and name not in own
    }
    rest, total = for_rows - sum(plain.values()), sum(weights.values())
    shares = {name: rest * weight // total for name, weight in weights.items()} | plain | own
    return shares | {MAIN_TABLE: shares[MAIN_TABLE] + sketch}


def share_disk(config: TableConfig, tables: Mapping[str, EmbeddingTable]) -> None:
    """Let a spill take of `disk_bytes` what the other spills leave, and at least half of an equal part.

    A plain table's takes half at most.
    """
    for name, table in tables.items():
        others = tuple(other.disk for other_name, other in tables.items() if other_name != name)
        cap = table.disk_cap
        cap.share = partial(_share, others, is_plain=config.tables[name].is_plain)
        cap.set_limit(cap.num_bytes)


def limits_of_tables(
    config: TableConfig, limits: TableLimits, tables: Mapping[str, EmbeddingTable], names: TableNames
) -> dict[str, TableLimits]:
    """Return the limits that each table gets. ValueError if one of them cannot keep its own."""
    shares: dict[str, int] = {}
    if limits.device_bytes is not None:
        resized, ops = replace(config, device_bytes=limits.device_bytes), tables[MAIN_TABLE].ops
        check_device_bytes(resized, ops)
        shares = device_shares(resized, ops)
        for name, table in tables.items():
            Capacity.of_bytes(replace(table.config, device_bytes=shares[name]), table.ops, tracked=table.tracked)
            if table.memory.num_pinned:
                raise ValueError("tables cannot change their size while lookups are open: update or release them first")
    by_table = {}
    for name, table in tables.items():
        inherits = config.tables[name].optimizer is None
        lr = limits.lr if inherits else None
        if lr is not None:
            RowOptimizer.of(table.config.optimizer).with_lr(lr)
        is_main = name == MAIN_TABLE
        by_table[name] = TableLimits(
            device_bytes=shares.get(name),
            disk_bytes=limits.disk_bytes,
            lr=lr,
            ttl_seconds={f: value for f, value in limits.ttl_seconds.items() if is_main or names.name_of(f) == name},
            quota_bytes={f: value for f, value in limits.quota_bytes.items() if names.name_of(f) == name},
            min_count=limits.min_count if is_main else {},
        )
    return by_table


def _share(others: tuple[Spill, ...], num_bytes: int, *, is_plain: bool) -> int:
    share = max(num_bytes - sum(other.num_bytes() for other in others), num_bytes // (2 * len(others) + 2))
    return min(share, num_bytes // PLAIN_SHARE) if is_plain else share
