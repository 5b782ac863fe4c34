"""How several tables share memory and disk, and which of them a limit concerns."""

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from springtide.embeddings.config import FeatureTable, TableConfig, TableLimits
from springtide.embeddings.memory.capacity import Capacity, sketch_bytes
from springtide.embeddings.optimizer import RowOptimizer
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.interface import Spill
from springtide.kernels.ops import Ops
from springtide_client.rows.table_names import MAIN_TABLE, TableNames
from springtide_client.system.sizes import format_size

KIB, MAX_KIB = 1 << 10, 1 << 30
PLAIN_SHARE = 2  # a table that no model sees gets half of the memory, and at most half of the disk


def table_configs(config: TableConfig, ops: Ops) -> dict[str, TableConfig]:
    """Return the settings of each table, the main one first: `config` itself if there is no other.

    The main table keeps the policies of all features, because it admits the ids of all.
    """
    if not config.tables:
        return {MAIN_TABLE: config}
    shares = device_shares(config, ops)
    configs = {MAIN_TABLE: replace(config, device_bytes=shares[MAIN_TABLE], tables={})}
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
    """Divide `device_bytes`: half to the plain table if there is one, of the rest as many rows to every feature.

    The admission sketch, which is in the main table, is paid for by all of them.
    """
    sketch = sketch_bytes(config)
    for_rows = max(0, config.device_bytes - sketch)
    plain = {name: for_rows // PLAIN_SHARE for name, table in config.tables.items() if table.is_plain}
    weights = {
        name: ops.slot_bytes(_with_rows_of(config, table).layout) * max(1, len(table.features))
        for name, table in config.tables.items()
        if name not in plain
    }
    rest, total = for_rows - sum(plain.values()), sum(weights.values())
    shares = {name: rest * weight // total for name, weight in weights.items()} | plain
    return shares | {MAIN_TABLE: shares[MAIN_TABLE] + sketch}


def share_disk(config: TableConfig, tables: Mapping[str, EmbeddingTable]) -> None:
    """Let a spill take of `disk_bytes` what the other spills leave, and at least half of an equal part.

    A plain table's takes half at most.
    """
    for name, table in tables.items():
        others = tuple(other.parts.disk for other_name, other in tables.items() if other_name != name)
        cap = table.parts.disk_cap
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
            Capacity.of_bytes(replace(table.config, device_bytes=shares[name]), ops, tracked=table.tracked)
            if table.parts.memory.num_pinned:
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
