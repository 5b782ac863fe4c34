"""Build the version that restores an older one: rows and dense net as they were, keys created since deleted.

What was erased or expired since does not come back. Expiry cutoffs stay, and the erased keys are read from the commands
in the log rather than from tombstones, because a rollback writes tombstones too. The version also records the erasures
for the records that will be read again (stream/decode/erasure_filter.py). Limits changed by a command stay as they are.

"""

# n rows
# n keys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.change.migrate import Migration, numbers_by_name
from springtide.app.version_log.change.plan import ModelSignature, Plan, plan_change
from springtide.app.version_log.commands.erasures import (
    erased_keys,
    erasures_ahead,
    erasures_from_meta,
    erasures_of,
    erasures_to_meta,
    high_water_marks,
)
from springtide.app.version_log.read.exact_state import ExactStates, exact_net, serve_averages
from springtide.app.version_log.read.id_dictionary import IdDictionary, id_strings_of
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import ModelReplayState
from springtide.app.version_log.read.version_range import (
    RANGE_BYTES,
    ImageRange,
    KeyRange,
    VersionRange,
    split_keys,
    versions_between,
)
from springtide.app.version_log.tables import LogTable, is_row_id, tables_of
from springtide.app.version_log.trainer_meta import TrainerMeta
from springtide.stream.positions import positions_from_meta, positions_to_meta
from springtide_client.format.records import CommandEntry, VersionMeta
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import aligned_chunks, flatten_layers, merge_layers
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

MAX_BYTES = 2 << 30  # of the rows in memory


class EarlierVersion(NamedTuple):
    """A version from before a changed schema, in the terms of the present one."""

    number: int  # the newest version at or before the wanted one that has the exact state of its net
    plan: Plan
    meta: VersionMeta
    arrays: Arrays  # `dense.*`, `state.*` and id strings, complete
    tables: tuple[LogTable, ...]  # of the present signature
    rows: dict[str, RowBlock]  # by the present tables, with states
    present_rows: dict[str, RowBlock]  # those of the newest version
    present: ModelReplayState  # the newest version
    entries: list[CommandEntry]  # executed since
    sketch: Array | None


def earlier_version(index: LogIndex, number: int, *, window_samples: int) -> EarlierVersion:
    """Read a version from before a changed schema. UserError if there are too many rows to hold in memory."""
    base, versions, target, net = _read(index, number, window_samples)
    newest_base, newest_versions, present, present_net = _read(index, index.numbers[-1], window_samples)
    old, new = ModelSignature.of(base), ModelSignature.of(newest_base)
    num_bytes = sum(_row_bytes(one) for one in (base, newest_base)) + versions.num_bytes + newest_versions.num_bytes
    if num_bytes > MAX_BYTES:
        raise UserError(
            f"the rows of both schemas take {num_bytes:,} bytes, a rollback to before a changed schema can hold "
            f"{MAX_BYTES:,}: start with the configuration from then, in a copy of the log that ends there"
        )
    continued = new.numbered_as(new.schema.continuing(old.schema))
    plan = plan_change(old, continued)
    migration = Migration(old, new, plan, numbers_by_name(old.schema, new.schema))
    strings = [part for tensors in versions.tensors_with("texts.id") if (part := id_strings_of(tensors)) is not None]
    strings += [] if base.id_strings is None else [base.id_strings]
    arrays = migration.arrays(net, present_net, window_samples=window_samples)
    if (migrated := migration.id_strings(*strings, dead=RowBlock.zeros(0, 0))) is not None:
        arrays |= {f"texts.{name}": array for name, array in migrated.items()}
    known = {entry.id for entry in target.meta.executed_commands}
    entries = [entry for entry in present.meta.executed_commands if entry.id not in known]
    return EarlierVersion(
        target.tip.number,
        plan,
        migration.meta(target.meta),
        arrays,
        new.physical_tables,
        _migrated_rows(base, versions, target.meta, migration),
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


def _migrated_rows(base: Base, versions: VersionRange, meta: VersionMeta, migration: Migration) -> dict[str, RowBlock]:
    """Return the rows of an older version by the tables of the present signature."""
    rows = {table.name: _live_rows(base, versions, meta, table) for table in migration.old.physical_tables}
    migrated = {}
    for target in migration.new.physical_tables:
        sources = [table for table in migration.old.physical_tables if migration.has_rows_for(table, target)]
        parts = [migration.rows(rows[table.name], table, target) for table in sources]
        migrated[target.name] = merge_layers(target.empty(), *parts)
    return migrated


def _live_rows(base: Base, versions: VersionRange, meta: VersionMeta, table: LogTable) -> RowBlock:
    parts = [table.empty()]
    for key_range in split_keys(versions.num_bytes):
        changes = versions.changes(key_range, table, with_states=True)
        for old, new in aligned_chunks([key_range.select(table.base_layer(base)), changes]):
            merged = merge_layers(old, new)
            parts.append(merged.where(merged.live_mask(meta.expiry_cutoffs)).without_tombstones())
    return flatten_layers(parts, table.spec.dim, table.spec.state_width)


def differing_rows(wanted: RowBlock, present: RowBlock) -> RowBlock:
    """Return the wanted rows that are not bit by bit among the present ones."""
    places_n = present.find_rows(wanted)
    same_n = places_n >= 0
    if not same_n.any():
        return wanted
    for name in ("value", "state", "count", "last_seen"):
        mine, theirs = (
            np.ascontiguousarray(array).reshape(len(wanted), -1).view(np.uint8)
            for array in (getattr(wanted, name), getattr(present, name)[places_n])
        )
        same_n &= (mine == theirs).all(axis=1)
    return wanted.where(~same_n)


class RollbackVersion(NamedTuple):
    """A version to append. The writer fills in what is missing in its meta."""

    meta: VersionMeta
    arrays: Arrays
    plan: Plan | None = None  # what of it the present schema carries, if it was written with another

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows it writes, in all tables, and how many keys it deletes."""
        num_rows = sum(len(array) for name, array in self.arrays.items() if is_row_id(name))
        return {"rows": num_rows, "forgotten": len(self.arrays.get("forgotten.id", ()))}

    @property
    def result(self) -> dict[str, Any]:
        """Return what the command's result says beside the version: the counts, and what the schema dropped."""
        return {**self.counts, **({} if self.plan is None else self.plan.document())}


def build_rollback(
    directory: LogDirectory, number: int, *, window_samples: int, range_bytes: int = RANGE_BYTES
) -> RollbackVersion:
    """Return the version that restores version `number` when it is appended to the end of the log.

    Where the exact state of a large net is not there any more, it restores the newest version before it where it is.
    Memory holds the rows that changed since, which the version carries, and about `range_bytes` of records beside them.
    UserError if the version is unknown or its base was deleted; LogError if the log cannot be read.
    """
    index = LogIndex(directory)
    index.resolve(str(number))
    if index.begin_of(number) != index.begin_of(index.numbers[-1]):
        return _build_across(index, number, window_samples)
    base = index.base_before(number)
    states = ExactStates(directory.path, base, index.find)
    candidates = index.entries_between(base.tip.number, number)
    num_exact = states.newest(candidates)
    number = candidates[num_exact - 1].number if num_exact else base.tip.number
    before, since = VersionRange(index, base.tip.number, number), versions_between(index, number, index.numbers[-1])
    target = ModelReplayState(base, window_samples=window_samples)
    for record in before.records():
        target.apply(record)
    current, newest_base, after = _current(index, target, since, window_samples=window_samples)
    known = {entry.id for entry in target.commands}
    entries = [entry for entry in current.commands if entry.id not in known]
    state_file = None if target.state_tip is None else states.file(target.state_tip.number)
    arrays = serve_averages(exact_net(target.arrays, state_file))
    arrays |= _sketch(target.sketch, current.sketch)
    schema = base.manifest.decode_schema()
    erased = erased_keys(entries, schema)
    arrays |= _rows(base, before, since, erased, current.meta.expiry_cutoffs, range_bytes)
    arrays |= _lost_strings(arrays, IdDictionary(base, before), IdDictionary(newest_base, after))
    return RollbackVersion(_meta(number, target.meta, current.meta, entries, schema), arrays)


def _build_across(index: LogIndex, number: int, window_samples: int) -> RollbackVersion:
    """Return the version that restores one from before a changed schema, as far as the present schema carries it."""
    earlier = earlier_version(index, number, window_samples=window_samples)
    schema, now = index.base_before(index.numbers[-1]).manifest.decode_schema(), earlier.present.meta
    erased, written, deleted = erased_keys(earlier.entries, schema), [], []
    for table in earlier.tables:
        rows, present = earlier.rows[table.name], earlier.present_rows[table.name]
        rows = rows.where(rows.live_mask(now.expiry_cutoffs) & ~erased.holds(rows))
        written.append((table, differing_rows(rows, present)))
        deleted.append(present.where(~rows.holds(present)).keys_only())
    arrays = earlier.arrays | _sketch(earlier.sketch, earlier.present.sketch)
    arrays |= _row_arrays(written, merge_layers(*deleted))
    return RollbackVersion(_meta(earlier.number, earlier.meta, now, earlier.entries, schema), arrays, earlier.plan)


def _current(
    index: LogIndex, target: ModelReplayState, since: VersionRange | ImageRange, *, window_samples: int
) -> tuple[ModelReplayState, Base, VersionRange]:
    """Return the end of the log without its rows, the newest base, and the versions after that.

    Across a gap, commands and counts of the sketch come from the newest base, which remembers every erasure since the
    oldest version that can be restored.
    """
    newest_base = index.base_before(index.numbers[-1])
    after = VersionRange(index, newest_base.tip.number, index.numbers[-1])
    is_whole = isinstance(since, VersionRange)
    current = target.copy() if is_whole else ModelReplayState(newest_base, window_samples=window_samples)
    for record in (since if isinstance(since, VersionRange) else after).records():
        current.apply_sketch_and_meta(record)
    return current, newest_base, after


def _lost_strings(arrays: Arrays, then: IdDictionary, now: IdDictionary) -> Arrays:
    """Return the strings of restored ids that the end of the log does not have any more, as a version adds them."""
    groups = [name.removesuffix("id") for name in arrays if is_row_id(name)]
    if not groups:
        return {}
    features = np.concatenate([arrays[f"{group}feature"] for group in groups])
    ids = np.concatenate([arrays[f"{group}id"] for group in groups])
    strings = then.find(features, ids)
    hashed = np.array([k for k, string in enumerate(strings) if string is not None], np.intp)
    known = now.find(features[hashed], ids[hashed])
    lost = [(k, strings[k] or "") for k, string in zip(hashed.tolist(), known, strict=True) if string is None]
    if not lost:
        return {}
    places = np.array([k for k, _ in lost], np.intp)
    encoded = [string.encode() for _, string in lost]
    return {
        "texts.feature": features[places],
        "texts.id": ids[places],
        "texts.offsets": np.cumsum([0, *map(len, encoded)]).astype(np.int64),
        "texts.bytes": np.frombuffer(b"".join(encoded), np.uint8),
    }


def _meta(
    number: int, target: VersionMeta, current: VersionMeta, entries: Sequence[CommandEntry], schema: Schema
) -> VersionMeta:
    """Return the old meta with what a rollback does not undo; `entries`: the commands executed since."""
    positions, marks = positions_from_meta(target.positions), high_water_marks(current)
    old, new = TrainerMeta.of(target), TrainerMeta.of(current)
    erasures = erasures_from_meta([*old.erasures, *new.erasures])
    erasures += erasures_of(entries, schema, otherwise=current.positions)
    trainer = msgspec.structs.replace(
        old,
        limits=new.limits,
        # the count of automatic rollbacks is kept, the newest of them is rolled back too
        gate=msgspec.structs.replace(old.gate, rollbacks=new.gate.rollbacks),
        seeks={},
        sought_by=new.sought_by,
        high_water_marks={} if marks == positions else positions_to_meta(marks),
        erasures=erasures_to_meta(erasures_ahead(erasures, positions)),
    )
    return msgspec.structs.replace(
        target,
        created_ms=0,
        expiry_cutoffs=current.expiry_cutoffs,
        admission=current.admission,
        sketch_blocks=current.sketch_blocks,
        record_ms=[],
        executed_commands=[],
        trainer=trainer.to_json(),
        restores=number,
        change={},
    )


def _sketch(target: Array | None, current: Array | None) -> Arrays:
    """Return the changed blocks of the admission sketch as they were; zeros if the sketch was replaced since."""
    if current is None:
        return {}
    was = target if target is not None and target.shape == current.shape else np.zeros_like(current)
    blocks = np.flatnonzero((was != current).any(axis=1))
    return {"sketch.block": blocks.astype(np.int64), "sketch.bytes": was[blocks]} if len(blocks) else {}


def _rows(
    base: Base,
    before: VersionRange,
    since: VersionRange | ImageRange,
    erased: RowBlock,
    cutoffs: Mapping[str, int],
    range_bytes: int,
) -> Arrays:
    """Return for every key that changed since its row as it was, or a tombstone."""
    written: list[tuple[LogTable, RowBlock]] = []
    deleted: list[RowBlock] = []
    for table in tables_of(base.manifest):
        parts: list[RowBlock] = []
        for key_range in split_keys(before.num_bytes + since.num_bytes, range_bytes):
            keys = since.keys(key_range, table)
            if isinstance(since, ImageRange):  # it lacks the keys that were erased and learned again to the same
                keys = merge_layers(key_range.select(table.select(erased)), keys)
            rows = _old_rows(base, table, before, keys, key_range)
            rows = rows.where(rows.live_mask(cutoffs) & ~erased.holds(rows)).without_tombstones()
            parts.append(rows)
            deleted.append(keys.where(~rows.holds(keys)).without_tombstones())
        written.append((table, merge_layers(table.empty(), *reversed(parts))))
    return _row_arrays(written, flatten_layers(reversed(deleted), 0))


def _row_arrays(written: Iterable[tuple[LogTable, RowBlock]], deleted: RowBlock) -> Arrays:
    arrays: Arrays = {}
    for table, rows in written:
        arrays |= table.row_arrays(rows)
    if len(deleted):
        arrays |= {"forgotten.feature": deleted.feature, "forgotten.id": deleted.id}
    return arrays


def _old_rows(base: Base, table: LogTable, before: VersionRange, keys: RowBlock, key_range: KeyRange) -> RowBlock:
    """Return the rows that the keys had; a key without a row is absent or a tombstone."""
    changed = before.changes(key_range, table, with_states=True, only=keys)
    rows = table.base_layer(base)
    places = rows.find_rows(keys.where(~changed.holds(keys)))
    old = rows.take(places[places >= 0])
    return flatten_layers((old, changed), table.spec.dim, table.spec.state_width)
