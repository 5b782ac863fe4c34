"""What lies between two versions: rows that came, changed and went, the largest moves, dense parameters, the stream.

Rows are compared a part of the key space at a time; a base is only looked into, never loaded.
"""

# K keys written in between, n rows of a base, D dimension
import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Array
from springtide_client.log.base import Base
from springtide_client.rows.layers import (
    BoolArray,
    Float32Array,
    Int64Array,
    RowLayer,
    UInt16Array,
    empty_layer,
    expiry_cutoffs_of,
)
from springtide_client.schema import Schema

from app.version_log.read.id_dictionary import IdDictionary, display_id, feature_name
from app.version_log.read.index import LogIndex
from app.version_log.read.version_range import RANGE_BYTES, KeyRange, VersionRange, split_keys

CHUNK_ROWS = 1 << 20  # of a base that are looked through at a time


@dataclass
class RowCounts:
    """How many rows of one feature did what."""

    added: int = 0
    changed: int = 0
    came_back: int = 0  # of the changed: forgotten in between, and new again
    forgotten_by_key: int = 0
    forgotten_by_rule: int = 0


@dataclass(frozen=True, order=True)
class RowMove:
    """A row that is at both versions, and how far apart."""

    distance: float
    feature: int
    id: int
    count: int  # how much its count grew


class DenseChange(NamedTuple):
    """A parameter of the dense net, or a statistic beside it."""

    name: str
    shape: tuple[int, ...]
    distance: float
    relative: float | None  # to its norm at the older version; None where that is 0


@dataclass
class VersionDiff:
    """From the older version to the newer one."""

    older: int
    newer: int
    schema: Schema
    metas: tuple[VersionMeta, VersionMeta]
    num_versions: int
    num_bytes: int
    features: dict[int, RowCounts] = field(default_factory=dict)
    moves: list[RowMove] = field(default_factory=list)  # the largest first
    texts: dict[tuple[int, int], str] = field(default_factory=dict)  # of the ids among them
    mean_move: float = 0.0
    dense: list[DenseChange] = field(default_factory=list)

    @property
    def total(self) -> RowCounts:
        """All features together."""
        total = RowCounts()
        for counts in self.features.values():
            for name, count in vars(counts).items():
                setattr(total, name, getattr(total, name) + count)
        return total

    def feature_name(self, number: int) -> str:
        return feature_name(self.schema, number)

    def key_name(self, move: RowMove) -> str:
        return display_id(move.id, self.texts.get((move.feature, move.id)))


@dataclass(frozen=True)
class _OlderRows:
    """Keys as they were at the older version."""

    alive: BoolArray
    value: Float32Array
    count: Int64Array
    last_seen: Int64Array


def diff_versions(
    index: LogIndex, older: int, newer: int, *, top: int = 10, range_bytes: int = RANGE_BYTES
) -> VersionDiff:
    """The difference of two versions, `older` first; UserError names the oldest version that can be compared."""
    base = index.base_before(older)
    before = VersionRange(index, base.tip.number, older)
    between = VersionRange(index, older, newer)
    metas = index.meta(older), index.meta(newer)
    schema = base.manifest.decode_schema()
    result = VersionDiff(older, newer, schema, metas, len(between.entries), between.num_bytes)
    comparison = _RowDiff(result, base, before, between, top)
    for part in split_keys(before.num_bytes + between.num_bytes, range_bytes):
        comparison.add(part)
    comparison.finish()
    result.dense = _dense_changes(base, before, between)
    if result.moves:
        finder = IdDictionary(base, VersionRange(index, base.tip.number, newer))
        features = np.array([move.feature for move in result.moves], np.uint16)
        ids = np.array([move.id for move in result.moves], np.int64)
        keys = zip(features.tolist(), ids.tolist(), strict=True)
        result.texts = {
            key: text for key, text in zip(keys, finder.find(features, ids), strict=True) if text is not None
        }
    return result


class _RowDiff:
    def __init__(self, result: VersionDiff, base: Base, before: VersionRange, between: VersionRange, top: int) -> None:
        self._result, self._base, self._before, self._between, self._top = result, base, before, between, top
        self._horizons = tuple(meta.expiry_cutoffs for meta in result.metas)
        self._sum, self._num_moves = 0.0, 0

    def add(self, part: KeyRange) -> None:
        """1. What was written in between. 2. What its keys were before. 3. What died of a rule and was not written."""
        dim = self._base.manifest.table.dim
        written = self._between.changes(part, dim)
        old = self._old(written, self._before.changes(part, dim, only=written))
        self._compare(written, old, self._between.tombstones(part))
        if _raised(*self._horizons):
            changed = self._before.keys(part)
            self._count("forgotten_by_rule", self._expired(changed, written))
            for start in range(0, len(base := part.select(_keys_only(self._base.rows))), CHUNK_ROWS):
                rows = base.take(slice(start, start + CHUNK_ROWS))
                rows = rows.take(np.flatnonzero(_not_in(changed, rows)))
                self._count("forgotten_by_rule", self._expired(rows, written))

    def finish(self) -> None:
        self._result.moves = sorted(self._result.moves, reverse=True)
        self._result.mean_move = self._sum / self._num_moves if self._num_moves else 0.0

    def _old(self, written: RowLayer, before: RowLayer) -> _OlderRows:
        old = _OlderRows(
            np.zeros(len(written), np.bool_),
            np.zeros_like(written.value),
            np.zeros(len(written), np.int64),
            np.zeros(len(written), np.int64),
        )
        missing = np.arange(len(written))
        for layer in (before, self._base.rows):
            rows = layer.find_mixed(written.mixed[missing], written.feature[missing])
            at, hits = missing[rows >= 0], rows[rows >= 0]
            old.alive[at] = True if layer.forgotten is None else ~layer.forgotten[hits]
            old.value[at], old.count[at], old.last_seen[at] = (
                layer.value[hits],
                layer.count[hits],
                layer.last_seen[hits],
            )
            missing = missing[rows < 0]
        if self._horizons[0]:
            old.alive[:] &= old.last_seen >= expiry_cutoffs_of(written.feature, self._horizons[0])
        return old

    def _compare(self, written: RowLayer, old: _OlderRows, forgotten: RowLayer) -> None:
        alive = written.live_mask(self._horizons[1])
        by_key = np.zeros(len(written), np.bool_) if written.forgotten is None else written.forgotten
        differs = (written.value != old.value).any(axis=1) | (written.count != old.count)
        changed = alive & old.alive & (differs | (written.last_seen != old.last_seen))
        self._count("added", written.feature[alive & ~old.alive])
        self._count("changed", written.feature[changed])
        self._count("came_back", written.feature[changed & ~_not_in(forgotten, written)])
        self._count("forgotten_by_key", written.feature[old.alive & by_key])
        self._count("forgotten_by_rule", written.feature[old.alive & ~alive & ~by_key])
        self._measure(written, old, np.flatnonzero(changed))

    def _measure(self, written: RowLayer, old: _OlderRows, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        distances = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK_ROWS):
            some = rows[start : start + CHUNK_ROWS]
            moved = written.value[some].astype(np.float64) - old.value[some]
            # a row with NaN has moved further than any other
            distances[start : start + CHUNK_ROWS] = np.nan_to_num(np.sqrt((moved**2).sum(axis=1)), nan=np.inf)
        self._sum, self._num_moves = self._sum + float(distances.sum()), self._num_moves + len(rows)
        far = np.argsort(-distances, kind="stable")[: self._top]
        moves = [
            RowMove(
                float(distances[place]),
                int(written.feature[row]),
                int(written.id[row]),
                int(written.count[row] - old.count[row]),
            )
            for place, row in zip(far, rows[far], strict=True)
            if distances[place] > 0
        ]
        self._result.moves = heapq.nlargest(self._top, [*self._result.moves, *moves])

    def _expired(self, rows: RowLayer, written: RowLayer) -> UInt16Array:
        """The features of rows that a rule raised in between took, those left out that were written in between."""
        dead = rows.live_mask(self._horizons[0]) & ~rows.live_mask(self._horizons[1])
        rows = rows.take(np.flatnonzero(dead))
        return rows.feature[_not_in(written, rows)]

    def _count(self, name: str, features: UInt16Array) -> None:
        for number, count in zip(*(found.tolist() for found in np.unique(features, return_counts=True)), strict=True):
            counts = self._result.features.setdefault(number, RowCounts())
            setattr(counts, name, getattr(counts, name) + count)


def _raised(older: Mapping[str, int], newer: Mapping[str, int]) -> bool:
    return any(horizon > older.get(number, 0) for number, horizon in newer.items())


def _not_in(layer: RowLayer, rows: RowLayer) -> BoolArray:
    return layer.find_mixed(rows.mixed, rows.feature) < 0


def _keys_only(rows: RowLayer) -> RowLayer:
    if not len(rows):
        return empty_layer(0)
    return RowLayer(rows.mixed, rows.feature, rows.id, rows.value[:, :0], rows.count, rows.last_seen)


def _dense_changes(base: Base, before: VersionRange, between: VersionRange) -> list[DenseChange]:
    """Every parameter that is at either version, the one that moved most, by its own norm, first."""
    older = base.dense | before.newest_arrays("dense.")
    newer = older | between.newest_arrays("dense.")
    changes = [_dense_change(name, older.get(name), array) for name, array in newer.items()]
    return sorted(changes, key=lambda change: (-(np.inf if change.relative is None else change.relative), change.name))


def _dense_change(name: str, older: Array | None, newer: Array) -> DenseChange:
    new = newer.astype(np.float64)
    old = np.zeros_like(new) if older is None or older.shape != newer.shape else older.astype(np.float64)
    distance, norm = float(np.linalg.norm(new - old)), float(np.linalg.norm(old))
    relative = distance / norm if norm else (None if distance else 0.0)
    return DenseChange(name.removeprefix("dense."), newer.shape, distance, relative)
