"""Build the version that restores an older one: rows and dense net as they were, keys created since deleted.

What was erased or expired since does not come back. Expiry cutoffs stay, and the erased keys are read from the commands
in the log rather than from tombstones, because a rollback writes tombstones too. The version also records the erasures
for the records that will be read again (stream/decode/erasure_filter.py). Limits changed by a command stay as they are.
"""

# n rows
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.change.migrate import Migration, numbers_by_name
from springtide.app.version_log.change.plan import ModelSignature, Plan, plan_change
from springtide.app.version_log.read.exact_state import ExactStates, exact_net, serve_averages
from springtide.app.version_log.read.id_dictionary import IdDictionary, id_strings_of
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import ModelReplayState
from springtide.app.version_log.read.version_range import (
    RANGE_BYTES,
    ImageRange,
    KeyRange,
    VersionImage,
    VersionRange,
    differing_rows,
    split_keys,
    versions_between,
)
from springtide.app.version_log.tables import LogTable, is_row_id, tables_of
from springtide.app.version_log.trainer_meta import (
    TrainerMeta,
    are_pairs,
    erased_keys,
    erased_pairs,
    erasures_ahead,
    erasures_from_meta,
    erasures_of,
    erasures_to_meta,
    high_water_marks,
)
from springtide.stream.positions import positions_from_meta, positions_to_meta
from springtide_client.counters import PairHalf
from springtide_client.format.records import CommandEntry, VersionMeta
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import flatten_layers, merge_layers
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

MAX_BYTES = 2 << 30  # of the rows in memory


class ExactVersion(NamedTuple):
    """The newest version at or before a wanted one that has the exact state of its net."""

    image: VersionImage
    state: ModelReplayState  # at its end
    net: Arrays  # `dense.*` and `state.*`, complete

    @staticmethod
    def of(index: LogIndex, version: int, *, window_samples: int) -> "ExactVersion":
        """UserError if the version is unknown or its base was deleted; LogError if the log cannot be read."""
        base = index.base_before(version)
        states = ExactStates(index.directory.path, base, index.find)
        candidates = index.entries_between(base.head.number, version)
        num_exact = states.newest(candidates)
        image = VersionImage(index, candidates[num_exact - 1].number if num_exact else base.head.number, base=base)
        state = ModelReplayState(base, window_samples=window_samples)
        for record in image.versions.records():
            state.apply(record)
        file = None if state.state_head is None else states.file(state.state_head.number)
        return ExactVersion(image, state, exact_net(state.arrays, file))


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
    directory: LogDirectory, version: int, *, window_samples: int, range_bytes: int = RANGE_BYTES
) -> RollbackVersion:
    """Return the version that restores an older one when it is appended to the end of the log.

    Where the exact state of a large net is not there any more, it restores the newest version before it where it is.
    Memory holds the rows that changed since, which the version carries, and about `range_bytes` of records beside them.
    UserError if the version is unknown or its base was deleted; LogError if the log cannot be read.
    """
    index = LogIndex(directory)
    index.resolve(str(version))
    if index.begin_of(version) != index.begin_of(index.numbers[-1]):
        return _build_across(index, version, window_samples)
    target = ExactVersion.of(index, version, window_samples=window_samples)
    base, before = target.image.base, target.image.versions
    since = versions_between(index, target.image.version, index.numbers[-1])
    current, newest = _current(index, target.state, since, window_samples=window_samples)
    entries = _executed_since(target.state, current)
    arrays = serve_averages(target.net) | _sketch(target.state.sketch, current.sketch)
    schema = target.image.schema
    erased, pairs = erased_keys(entries, schema), erased_pairs(entries, schema)
    arrays |= _rows(base, before, since, erased, pairs, current.meta.expiry_cutoffs, range_bytes)
    arrays |= _lost_strings(arrays, IdDictionary(base, before), IdDictionary(newest.base, newest.versions))
    return RollbackVersion(_meta(target.image.version, target.state.meta, current.meta, entries, schema), arrays)


def _build_across(index: LogIndex, version: int, window_samples: int) -> RollbackVersion:
    """Return the version that restores one from before a changed schema, as far as the present schema carries it.

    UserError if there are too many rows to hold in memory.
    """
    target = ExactVersion.of(index, version, window_samples=window_samples)
    present = ExactVersion.of(index, index.numbers[-1], window_samples=window_samples)
    if (num_bytes := target.image.num_bytes + present.image.num_bytes) > MAX_BYTES:
        raise UserError(
            f"the rows of both schemas take {num_bytes:,} bytes, a rollback to before a changed schema can hold "
            f"{MAX_BYTES:,}: start with the configuration from then, in a copy of the log that ends there"
        )
    old, new = ModelSignature.of(target.image.base), ModelSignature.of(present.image.base)
    plan = plan_change(old, new.numbered_as(new.schema.continuing(old.schema)))
    migration = Migration(old, new, plan, numbers_by_name(old.schema, new.schema))
    entries, now = _executed_since(target.state, present.state), present.state.meta
    erased, written, deleted = erased_keys(entries, new.schema), [], []
    pairs = erased_pairs(entries, new.schema)
    for table, rows in _migrated_rows(target.image, migration):
        there = present.image.live_layer(table)
        is_erased = erased.holds(rows) | are_pairs(pairs, rows.feature, rows.id)
        rows = rows.where(rows.live_mask(now.expiry_cutoffs) & ~is_erased)
        written.append((table, differing_rows(rows, there)))
        deleted.append(there.where(~rows.holds(there)).keys_only())
    arrays = migration.arrays(target.net, present.net, window_samples=window_samples)
    added = map(id_strings_of, target.image.versions.tensors_with("texts.id"))
    if (migrated := migration.id_strings(target.image.base.id_strings, *added)) is not None:
        arrays |= {f"texts.{name}": array for name, array in migrated.items()}
    arrays |= _sketch(target.state.sketch, present.state.sketch) | _row_arrays(written, merge_layers(*deleted))
    meta = _meta(target.image.version, migration.meta(target.state.meta), now, entries, new.schema)
    return RollbackVersion(meta, arrays, plan)


def _migrated_rows(image: VersionImage, migration: Migration) -> Iterator[tuple[LogTable, RowBlock]]:
    """Yield each table of the present signature with the rows that an older version has for it."""
    tables = migration.old.physical_tables
    rows = {table.name: image.live_layer(table) for table in tables}
    for target in migration.new.physical_tables:
        sources = [table for table in tables if migration.has_rows_for(table, target)]
        parts = [migration.rows(rows[table.name], table, target) for table in sources]
        yield target, merge_layers(target.empty(), *parts)


def _executed_since(then: ModelReplayState, now: ModelReplayState) -> list[CommandEntry]:
    """Return the commands that were executed between two versions."""
    known = {entry.id for entry in then.commands}
    return [entry for entry in now.commands if entry.id not in known]


def _current(
    index: LogIndex, target: ModelReplayState, since: VersionRange | ImageRange, *, window_samples: int
) -> tuple[ModelReplayState, VersionImage]:
    """Return the end of the log without its rows, and how it is made of the newest base.

    Across a gap, commands and counts of the sketch come from the newest base, which remembers every erasure since the
    oldest version that can be restored.
    """
    newest = VersionImage(index, index.numbers[-1])
    if isinstance(since, VersionRange):
        current, records = target.copy(), since.records()
    else:
        current, records = ModelReplayState(newest.base, window_samples=window_samples), newest.versions.records()
    for record in records:
        current.apply_sketch_and_meta(record)
    return current, newest


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
    version: int, target: VersionMeta, current: VersionMeta, entries: Sequence[CommandEntry], schema: Schema
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
        restores=version,
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
    pairs: Sequence[PairHalf],
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
            is_erased = erased.holds(rows) | are_pairs(pairs, rows.feature, rows.id)
            rows = rows.where(rows.live_mask(cutoffs) & ~is_erased).without_tombstones()
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
