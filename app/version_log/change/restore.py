"""Rollback to a version from before a changed schema: it writes all that the present schema can carry of it.

Rows are told apart by their features' names, so a feature that was removed and added again gets its rows back. What the
present design cannot carry stays as it is now (parameters of the net) or is deleted (rows of features that are new).
"""

# n rows
from typing import NamedTuple

import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.change.carry import Carry, numbers_by_name
from springtide.app.version_log.change.design import Design
from springtide.app.version_log.change.plan import Plan, plan_change
from springtide.app.version_log.read.exact_state import ExactStates, exact_net
from springtide.app.version_log.read.id_dictionary import id_strings_of
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import ModelReplayState
from springtide.app.version_log.read.version_range import VersionRange, split_keys
from springtide.app.version_log.tables import LogTable, tables_of
from springtide_client.format.records import CommandEntry, VersionMeta
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import Base
from springtide_client.rows.layers import aligned_chunks, flatten_layers, merge_layers
from springtide_client.rows.row_layer import RowLayer, empty_layer

MAX_BYTES = 2 << 30  # of the rows in memory


class EarlierVersion(NamedTuple):
    """A version from before a changed schema, in the terms of the present one."""

    number: int  # the newest version at or before the wanted one that has the exact state of its net
    plan: Plan
    meta: VersionMeta
    arrays: Arrays  # `dense.*`, `state.*` and id strings, complete
    tables: tuple[LogTable, ...]  # of the present design
    rows: dict[str, RowLayer]  # by the present tables, with states
    present_rows: dict[str, RowLayer]  # those of the newest version
    present: ModelReplayState  # the newest version
    entries: list[CommandEntry]  # executed since
    sketch: Array | None


def earlier_version(index: LogIndex, number: int, *, window_samples: int) -> EarlierVersion:
    """Read a version from before a changed schema. UserError if there are too many rows to hold in memory."""
    base, versions, target, net = _read(index, number, window_samples)
    newest_base, newest_versions, present, present_net = _read(index, index.numbers[-1], window_samples)
    old, new = Design.of(base), Design.of(newest_base)
    num_bytes = sum(_row_bytes(one) for one in (base, newest_base)) + versions.num_bytes + newest_versions.num_bytes
    if num_bytes > MAX_BYTES:
        raise UserError(
            f"the rows of both schemas take {num_bytes:,} bytes, a rollback to before a changed schema can hold "
            f"{MAX_BYTES:,}: start with the configuration from then, in a copy of the log that ends there"
        )
    continued = new.numbered_as(new.schema.continuing(old.schema))
    plan = plan_change(old, continued)
    carry = Carry(old, new, plan, numbers_by_name(old.schema, new.schema))
    strings = [part for tensors in versions.tensors_with("texts.id") if (part := id_strings_of(tensors)) is not None]
    strings += [] if base.id_strings is None else [base.id_strings]
    arrays = carry.arrays(net, present_net, window_samples=window_samples)
    if (carried := carry.id_strings(*strings, dead=empty_layer(0))) is not None:
        arrays |= {f"texts.{name}": array for name, array in carried.items()}
    known = {entry.id for entry in target.meta.executed_commands}
    entries = [entry for entry in present.meta.executed_commands if entry.id not in known]
    return EarlierVersion(
        target.tip.number,
        plan,
        carry.meta(target.meta),
        arrays,
        new.physical_tables,
        _carried_rows(base, versions, target.meta, carry),
        {table.name: _live_rows(newest_base, newest_versions, present.meta, table) for table in new.physical_tables},
        present,
        entries,
        target.sketch,
    )


def _read(index: LogIndex, number: int, window_samples: int) -> tuple[Base, VersionRange, ModelReplayState, Arrays]:
    """Return the newest exact version up to this one: its base, the versions after that, its end, and its net."""
    base = index.base_before(number)
    states = ExactStates(index.directory.path, base, index.find)
    candidates = index.entries_between(base.tip.number, number)
    num_exact = states.newest(candidates)
    versions = VersionRange(index, base.tip.number, candidates[num_exact - 1].number if num_exact else base.tip.number)
    state = ModelReplayState(base, window_samples=window_samples)
    for record in versions.records():
        state.apply(record)
    file = None if state.state_tip is None else states.file(state.state_tip.number)
    return base, versions, state, exact_net(state.arrays, file)


def _row_bytes(base: Base) -> int:
    return sum(table.base_layer(base).num_bytes for table in tables_of(base.manifest))


def _carried_rows(base: Base, versions: VersionRange, meta: VersionMeta, carry: Carry) -> dict[str, RowLayer]:
    """Return the rows of an older version by the tables of the present design."""
    rows = {table.name: _live_rows(base, versions, meta, table) for table in carry.old.physical_tables}
    carried = {}
    for target in carry.new.physical_tables:
        sources = [table for table in carry.old.physical_tables if carry.has_rows_for(table, target)]
        parts = [carry.rows(rows[table.name], table, target) for table in sources]
        carried[target.name] = merge_layers(target.empty(), *parts)
    return carried


def _live_rows(base: Base, versions: VersionRange, meta: VersionMeta, table: LogTable) -> RowLayer:
    parts = [table.empty()]
    for key_range in split_keys(versions.num_bytes):
        changes = versions.changes(key_range, table, with_states=True)
        for old, new in aligned_chunks([key_range.select(table.base_layer(base)), changes]):
            merged = merge_layers(old, new)
            parts.append(merged.take(np.flatnonzero(merged.live_mask(meta.expiry_cutoffs))).without_tombstones())
    return flatten_layers(parts, table.spec.dim, table.spec.state_width)


def differing_rows(wanted: RowLayer, present: RowLayer) -> RowLayer:
    """Return the wanted rows that are not bit by bit among the present ones."""
    places_n = present.find_mixed(wanted.mixed, wanted.feature)
    same_n = places_n >= 0
    if not same_n.any():
        return wanted
    for name in ("value", "state", "count", "last_seen"):
        mine, theirs = (
            np.ascontiguousarray(array).reshape(len(wanted), -1).view(np.uint8)
            for array in (getattr(wanted, name), getattr(present, name)[places_n])
        )
        same_n &= (mine == theirs).all(axis=1)
    return wanted.take(np.flatnonzero(~same_n))
