"""The version that brings an older one back: rows and dense net as they were, keys born since forgotten.

Nothing that was forgotten since comes back, by key or by rule: horizons stay, and which keys were forgotten is read
from the orders in the log, not from marks, for a mark of a rollback is no forgetting. Records that are read again do
not bring them back either: the version tells up to where in the stream which keys are to be hidden
(stream/decode/erasure_filter.py).
Limits changed by order stay too.
"""

# n keys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import RowLayer, flatten_layers
from springtide_client.schema import Schema

from app.version_log.commands.erasures import (
    erased_keys,
    erasures_ahead,
    erasures_from_meta,
    erasures_of,
    erasures_to_meta,
    high_water_marks,
)
from app.version_log.read.index import LogIndex
from app.version_log.read.model_replay_state import ModelReplayState
from app.version_log.read.version_range import RANGE_BYTES, KeyRange, VersionRange, split_keys
from app.version_log.trainer_meta import TrainerMeta
from stream.positions import positions_from_meta, positions_to_meta

ROW_COLUMNS = ("feature", "id", "value", "state", "count", "last_seen")


class RollbackVersion(NamedTuple):
    """A version to append; its meta lacks what only its writer knows."""

    meta: VersionMeta
    arrays: Arrays

    @property
    def counts(self) -> dict[str, int]:
        """Rows that it writes and keys that it forgets."""
        return {"rows": len(self.arrays.get("rows.id", ())), "forgotten": len(self.arrays.get("forgotten.id", ()))}


def build_rollback(
    directory: LogDirectory, number: int, *, window_samples: int, range_bytes: int = RANGE_BYTES
) -> RollbackVersion:
    """What restores version `number`, at the end of the log as it is now.

    Memory holds the rows that changed since, which the version carries, and records of `range_bytes` beside them.
    UserError where the version is unknown or its base retired; LogError where the log cannot be read.
    """
    index = LogIndex(directory)
    index.resolve(str(number))
    base = index.base_before(number)
    before, since = VersionRange(index, base.tip.number, number), VersionRange(index, number, index.numbers[-1])
    then = ModelReplayState(base, window_samples=window_samples)
    for record in before.records():
        then.apply(record)
    now = then.copy()
    entries: list[dict[str, Any]] = []
    for record in since.records():
        now.apply_sketch_and_meta(record)
        entries += record.meta.executed_commands
    arrays = then.arrays
    arrays |= _sketch(then.sketch, now.sketch)
    schema = base.manifest.decode_schema()
    gone = erased_keys(entries, schema)
    arrays |= _rows(base, before, since, gone, now.meta.expiry_cutoffs, range_bytes)
    return RollbackVersion(_meta(number, then.meta, now.meta, entries, schema), arrays)


def _meta(
    number: int, then: VersionMeta, now: VersionMeta, entries: Sequence[Mapping[str, Any]], schema: Schema
) -> VersionMeta:
    """As it was, but for what is not gone back on; `entries`: of the orders executed since."""
    positions, marks = positions_from_meta(then.positions), high_water_marks(now)
    old, new = TrainerMeta.of(then), TrainerMeta.of(now)
    erasures = erasures_from_meta([*old.erasures, *new.erasures])
    erasures += erasures_of(entries, schema, otherwise=now.positions)
    trainer = msgspec.structs.replace(
        old,
        limits=new.limits,
        # the count of automatic rollbacks is kept, the newest of them is rolled back too
        gate=msgspec.structs.replace(old.gate, rollbacks=new.gate.rollbacks),
        seeks={},
        high_water_marks={} if marks == positions else positions_to_meta(marks),
        erasures=erasures_to_meta(erasures_ahead(erasures, positions)),
    )
    return msgspec.structs.replace(
        then,
        created_ms=0,
        expiry_cutoffs=now.expiry_cutoffs,
        admission=now.admission,
        sketch_blocks=now.sketch_blocks,
        record_ms=[],
        executed_commands=[],
        trainer=trainer.to_json(),
        restores=number,
    )


def _sketch(then: Array | None, now: Array | None) -> Arrays:
    """The blocks that differ, as they were; nothing counted where the sketch has begun anew since."""
    if now is None:
        return {}
    was = then if then is not None and then.shape == now.shape else np.zeros_like(now)
    blocks = np.flatnonzero((was != now).any(axis=1))
    return {"sketch.block": blocks.astype(np.int64), "sketch.bytes": was[blocks]} if len(blocks) else {}


def _rows(
    base: Base, before: VersionRange, since: VersionRange, gone: RowLayer, horizons: Mapping[str, int], range_bytes: int
) -> Arrays:
    """Every key that changed since: its row as it was, or a mark."""
    table = base.manifest.table
    written: list[RowLayer] = []
    marked: list[RowLayer] = []
    for part in split_keys(before.num_bytes + since.num_bytes, range_bytes):
        keys = since.keys(part)
        rows = _rows_then(base, before, keys, part)
        alive_n = rows.live_mask(horizons) & (gone.find_mixed(rows.mixed, rows.feature) < 0)
        written.append(_without_tombstones(rows.take(np.flatnonzero(alive_n))))
        marked.append(_keys_only(keys).take(np.flatnonzero(written[-1].find_mixed(keys.mixed, keys.feature) < 0)))
    both = flatten_layers(reversed(written), table.dim, table.state_width), flatten_layers(reversed(marked), 0)
    arrays: Arrays = {}
    if len(both[0]):
        arrays |= {f"rows.{name}": getattr(both[0], name) for name in ROW_COLUMNS}
    if len(both[1]):
        arrays |= {"forgotten.feature": both[1].feature, "forgotten.id": both[1].id}
    return arrays


def _rows_then(base: Base, before: VersionRange, keys: RowLayer, part: KeyRange) -> RowLayer:
    """The rows that some keys had; what was a mark or nowhere may be absent or a mark."""
    table = base.manifest.table
    changed = before.changes(part, table.dim, state_width=table.state_width, only=keys)
    below = np.flatnonzero(changed.find_mixed(keys.mixed, keys.feature) < 0)
    found = base.find_rows(keys.feature[below], keys.id[below])
    at, here = below[found.found], found.found
    columns = found.values[here], found.counts[here], found.last_seen[here]
    old = RowLayer(keys.mixed[at], keys.feature[at], keys.id[at], *columns, None, found.states[here])
    return flatten_layers((old, changed), table.dim, table.state_width)


def _keys_only(layer: RowLayer) -> RowLayer:
    """The keys alone."""
    zeros = np.zeros(len(layer), np.int64)
    return RowLayer(layer.mixed, layer.feature, layer.id, np.zeros((len(layer), 0), np.float32), zeros, zeros)


def _without_tombstones(layer: RowLayer) -> RowLayer:
    fields = layer.mixed, layer.feature, layer.id, layer.value, layer.count, layer.last_seen
    return RowLayer(*fields, None, layer.state)
