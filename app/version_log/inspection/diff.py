"""Compare two versions: rows added, changed and deleted, the rows that moved most, dense parameters, the stream.

Rows are compared one range of keys at a time; a base is read where needed, never loaded whole.
"""

# K keys written in between, n rows of a base, D dimension
import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from springtide.app.errors import UserError
from springtide.app.version_log.read.id_dictionary import IdDictionary, display_id, feature_name
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import (
    RANGE_BYTES,
    ImageRange,
    KeyRange,
    VersionRange,
    split_keys,
    versions_between,
)
from springtide.app.version_log.tables import LogTable, tables_of
from springtide_client.array_types import UInt16Array
from springtide_client.format.records import VersionMeta, version_name
from springtide_client.format.tensors import Array
from springtide_client.log.base import Base
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

CHUNK_ROWS = 1 << 20  # of a base, read at a time


@dataclass
class RowCounts:
    """Changes to the rows of one feature, in numbers."""

    added: int = 0
    changed: int = 0
    came_back: int = 0  # of the changed: deleted and created again in between
    erased: int = 0  # by key
    expired: int = 0  # by a TTL or another rule


@dataclass(frozen=True, order=True)
class RowMove:
    """A row that exists at both versions, and the distance between its two vectors (L2)."""

    distance: float
    feature: int
    id: int
    count: int  # the growth of its count


class DenseChange(NamedTuple):
    """The change of one parameter or buffer of the dense net (L2)."""

    name: str
    shape: tuple[int, ...]
    distance: float
    relative: float | None  # to its norm at the older version; None if that is 0


@dataclass
class VersionDiff:
    """From the older version to the newer one."""

    older: int
    newer: int
    schema: Schema
    metas: tuple[VersionMeta, VersionMeta]
    num_versions: int
    num_bytes: int
    has_gap: bool = False  # versions between the two are no longer in the log
    features: dict[int, RowCounts] = field(default_factory=dict)
    moves: list[RowMove] = field(default_factory=list)  # the largest first
    id_strings: dict[tuple[int, int], str] = field(default_factory=dict)  # of the keys in `moves`
    mean_move: float = 0.0
    dense: list[DenseChange] = field(default_factory=list)

    @property
    def total(self) -> RowCounts:
        """The counts of all features together."""
        total = RowCounts()
        for counts in self.features.values():
            for name, count in vars(counts).items():
                setattr(total, name, getattr(total, name) + count)
        return total

    def feature_name(self, feature: int) -> str:
        return feature_name(self.schema, feature)

    def display_id(self, move: RowMove) -> str:
        return display_id(move.id, self.id_strings.get((move.feature, move.id)))


def diff_versions(
    index: LogIndex, older: int, newer: int, *, top: int = 10, range_bytes: int = RANGE_BYTES
) -> VersionDiff:
    """Compare two versions, `older` first; UserError names the oldest version that can be compared."""
    if (begin := index.begin_of(newer)) != index.begin_of(older):
        raise UserError(
            f"a changed schema begins with version {version_name(begin)}: versions before it cannot be compared with "
            f"later ones; `springtide versions show {version_name(begin)}` says what it kept"
        )
    base = index.base_before(older)
    before = VersionRange(index, base.head.number, older)
    between = versions_between(index, older, newer)
    metas = index.meta(older), index.meta(newer)
    schema = base.manifest.decode_schema()
    num_bytes = sum(entry.num_bytes for entry in between.entries)
    result = VersionDiff(older, newer, schema, metas, len(between.entries), num_bytes)
    result.has_gap = isinstance(between, ImageRange)
    comparison = _RowDiff(result, base, before, between, top)
    for table in tables_of(base.manifest):
        for key_range in split_keys(before.num_bytes + between.num_bytes, range_bytes):
            comparison.add(table, key_range)
    comparison.finish()
    result.dense = _dense_changes(base, before, between)
    if result.moves:
        last_base = index.base_before(newer)
        finder = IdDictionary(last_base, VersionRange(index, last_base.head.number, newer))
        features = np.array([move.feature for move in result.moves], np.uint16)
        ids = np.array([move.id for move in result.moves], np.int64)
        keys = zip(features.tolist(), ids.tolist(), strict=True)
        result.id_strings = {
            key: string for key, string in zip(keys, finder.find(features, ids), strict=True) if string is not None
        }
    return result


class _RowDiff:
    def __init__(
        self, result: VersionDiff, base: Base, before: VersionRange, between: VersionRange | ImageRange, top: int
    ) -> None:
        self._result, self._base, self._before, self._between, self._top = result, base, before, between, top
        self._cutoffs = tuple(meta.expiry_cutoffs for meta in result.metas)
        self._sum, self._num_moves = 0.0, 0

    def add(self, table: LogTable, key_range: KeyRange) -> None:
        """1. Rows written in between. 2. Their keys' older rows. 3. Rows that expired without being written."""
        base_rows = table.base_rows(self._base)
        written = self._between.changes(key_range, table)
        old = self._old(written, self._before.changes(key_range, table, only=written), base_rows)
        self._compare(written, old, self._between.tombstones(key_range, table))
        if _raised(*self._cutoffs):
            changed = self._before.keys(key_range, table)
            self._count("expired", self._expired(changed, written))
            for start in range(0, len(base := key_range.select(base_rows.keys_only())), CHUNK_ROWS):
                rows = base.take(slice(start, start + CHUNK_ROWS))
                rows = rows.where(~changed.holds(rows))
                self._count("expired", self._expired(rows, written))

    def finish(self) -> None:
        self._result.moves = sorted(self._result.moves, reverse=True)
        self._result.mean_move = self._sum / self._num_moves if self._num_moves else 0.0

    def _old(self, written: RowBlock, before: RowBlock, base_rows: RowBlock) -> RowBlock:
        """Return the rows that these keys had at the older version; tombstones where they had none."""
        old = RowBlock.of_keys(written.feature, written.id, written.dim).deleted()
        keys, missing, gone = written.keys_only(), np.arange(len(written)), old.tombstones()
        for layer in (before, base_rows):
            rows = layer.find_rows(keys.take(missing))
            at, hits = missing[rows >= 0], rows[rows >= 0]
            gone[at] = False if layer.tombstone is None else layer.tombstone[hits]
            for column, there in zip(old.contents, layer.contents, strict=True):
                column[at] = there[hits]
            missing = missing[rows < 0]
        return old

    def _compare(self, written: RowBlock, old: RowBlock, tombstones: RowBlock) -> None:
        alive, was_alive = written.live_mask(self._cutoffs[1]), old.live_mask(self._cutoffs[0])
        by_key = written.tombstones()
        differs = (written.value != old.value).any(axis=1) | (written.count != old.count)
        changed = alive & was_alive & (differs | (written.last_seen != old.last_seen))
        self._count("added", written.feature[alive & ~was_alive])
        self._count("changed", written.feature[changed])
        self._count("came_back", written.feature[changed & tombstones.holds(written)])
        self._count("erased", written.feature[was_alive & by_key])
        self._count("expired", written.feature[was_alive & ~alive & ~by_key])
        self._measure(written, old, np.flatnonzero(changed))

    def _measure(self, written: RowBlock, old: RowBlock, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        distances = np.empty(len(rows))
        for start in range(0, len(rows), CHUNK_ROWS):
            some = rows[start : start + CHUNK_ROWS]
            moved = written.value[some].astype(np.float64) - old.value[some]
            # a row with NaN counts as the largest move
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

    def _expired(self, rows: RowBlock, written: RowBlock) -> UInt16Array:
        """Return the features of the rows that expired in between, without those that were written in between."""
        dead = rows.live_mask(self._cutoffs[0]) & ~rows.live_mask(self._cutoffs[1])
        rows = rows.where(dead)
        return rows.feature[~written.holds(rows)]

    def _count(self, name: str, features: UInt16Array) -> None:
        for feature, count in zip(*(found.tolist() for found in np.unique(features, return_counts=True)), strict=True):
            counts = self._result.features.setdefault(feature, RowCounts())
            setattr(counts, name, getattr(counts, name) + count)


def _raised(older: Mapping[str, int], newer: Mapping[str, int]) -> bool:
    return any(cutoff > older.get(feature, 0) for feature, cutoff in newer.items())


def _dense_changes(base: Base, before: VersionRange, between: VersionRange | ImageRange) -> list[DenseChange]:
    """Return every parameter of either version, the one that changed most relative to its norm first."""
    older = before.newest_net(base.dense, "dense.")
    newer = between.newest_net(older, "dense.")
    changes = [_dense_change(name, older.get(name), array) for name, array in newer.items()]
    return sorted(changes, key=lambda change: (-(np.inf if change.relative is None else change.relative), change.name))


def _dense_change(name: str, older: Array | None, newer: Array) -> DenseChange:
    new = newer.astype(np.float64)
    old = np.zeros_like(new) if older is None or older.shape != newer.shape else older.astype(np.float64)
    distance, norm = float(np.linalg.norm(new - old)), float(np.linalg.norm(old))
    relative = distance / norm if norm else (None if distance else 0.0)
    return DenseChange(name.removeprefix("dense."), newer.shape, distance, relative)
