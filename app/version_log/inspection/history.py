"""The history of one row as far back as the log reaches, and the sizes of a version's tables."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from springtide.app.version_log.read.id_dictionary import IdDictionary
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage, VersionRange
from springtide.app.version_log.tables import table_holding, tables_of
from springtide_client.array_types import Float32Array
from springtide_client.errors import LogError
from springtide_client.format.records import Record, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.log.listing import base_name
from springtide_client.rows.row_block import RowBlock

# kinds of events
IN_BASE, CREATED, WRITTEN, ERASED, EXPIRED = "in base", "created", "written", "erased", "expired"
GONE = "gone"  # deleted by a version that the log no longer has


@dataclass(frozen=True)
class RowEvent:
    """A version's change to the row. The row's figures are None if the version deleted it."""

    version: int
    created_ms: int  # of the version
    kind: str
    count: int | None = None
    last_seen_ms: int | None = None
    norm: float | None = None
    move: float | None = None  # the L2 distance from its previous vector; None if it is new


@dataclass
class RowHistory:
    """Events, oldest first; the oldest are dropped beyond the limit."""

    feature: int
    id: int
    first: int  # of the version that the log reaches back to
    events: deque[RowEvent]
    num_events: int = 0
    string: str | None = None  # the id as a string, if it is the hash of one
    bases: list[int] = field(default_factory=list)  # that contain it

    @property
    def is_alive(self) -> bool:
        """True if the row exists at the newest version."""
        return bool(self.events) and self.events[-1].kind in (IN_BASE, CREATED, WRITTEN)


def row_history(index: LogIndex, feature: int, row_id: int, *, limit: int) -> RowHistory:
    """Follow a key from the oldest base of the present schema through every version.

    LogError if one of them cannot be read.
    """
    base = index.base_before(index.numbers[-1]) if not index.bases else _oldest_base(index)
    history = RowHistory(feature, row_id, base.head.number, deque(maxlen=limit))
    builder = _HistoryBuilder(history, base)
    versions = VersionRange(index, base.head.number, index.runs.end_of(base.head.number))
    for record in versions.records():
        builder.apply(record)
    strings = [IdDictionary(base, versions)]
    for version in index.runs.starts():
        if version > versions.last:  # after a gap
            start = Base.open(index.directory.path / base_name(version))
            versions = VersionRange(index, version, index.runs.end_of(version))
            builder.continue_from(start)
            for record in versions.records():
                builder.apply(record)
            strings.append(IdDictionary(start, versions))
    for version in filter(lambda version: version >= base.head.number, index.bases):
        opened = base if version == base.head.number else Base.open(index.directory.path / base_name(version))
        if _find(opened, history)[1] >= 0:
            history.bases.append(version)
    found = (dictionary.find(*_key(feature, row_id))[0] for dictionary in strings)
    history.string = next((string for string in found if string is not None), None)
    return history


class _HistoryBuilder:
    def __init__(self, history: RowHistory, base: Base) -> None:
        self._history = history
        self._table = table_holding(tables_of(base.manifest), history.feature)
        self._vector: Float32Array | None = None
        self._last_seen = 0
        rows, row = _find(base, history)
        if row >= 0:
            meta = base.manifest.meta
            seen = int(rows.last_seen[row])
            self._write(base.head.number, meta, IN_BASE, int(rows.count[row]), seen, rows.value[row])

    def continue_from(self, base: Base) -> None:
        """Go on from a base, behind versions that are no longer in the log."""
        meta, (rows, row) = base.manifest.meta, _find(base, self._history)
        if row < 0:
            if self._vector is not None:
                self._delete(base.head.number, meta, GONE)
        elif self._vector is None or not np.array_equal(self._vector, rows.value[row], equal_nan=True):
            count, seen = int(rows.count[row]), int(rows.last_seen[row])
            self._write(base.head.number, meta, IN_BASE, count, seen, rows.value[row])

    def apply(self, record: Record) -> None:
        """Apply the next version: tombstones first, then rows, then expiry."""
        tensors, meta, version = record.tensors(), record.meta, record.number
        if _row_of(tensors, "forgotten", self._history) is not None:
            self._delete(version, meta, ERASED)
        group = self._table.record_tensor("rows")
        if (row := _row_of(tensors, group, self._history)) is not None:
            count, seen = int(tensors[f"{group}.count"][row]), int(tensors[f"{group}.last_seen"][row])
            kind = CREATED if self._vector is None else WRITTEN
            self._write(version, meta, kind, count, seen, tensors[f"{group}.value"][row])
        cutoff = meta.expiry_cutoffs.get(str(self._history.feature), self._last_seen)
        if self._vector is not None and self._last_seen < cutoff:
            self._delete(version, meta, EXPIRED)

    def _write(self, version: int, meta: VersionMeta, kind: str, count: int, seen: int, vector: Float32Array) -> None:
        move = None if self._vector is None else _length(vector.astype(np.float64) - self._vector)
        self._vector, self._last_seen = np.array(vector), seen
        self._add(RowEvent(version, meta.created_ms, kind, count, seen, _length(vector.astype(np.float64)), move))

    def _delete(self, version: int, meta: VersionMeta, kind: str) -> None:
        self._vector = None
        self._add(RowEvent(version, meta.created_ms, kind))

    def _add(self, event: RowEvent) -> None:
        self._history.events.append(event)
        self._history.num_events += 1


def _find(base: Base, history: RowHistory) -> tuple[RowBlock, int]:
    """Return the rows of the key's table, and the place of its row in them, -1 if it has none."""
    rows = table_holding(tables_of(base.manifest), history.feature).base_rows(base)
    return rows, int(rows.find(*_key(history.feature, history.id))[0])


def _oldest_base(index: LogIndex) -> Base:
    failure: LogError | None = None
    begin = index.begin_of(index.numbers[-1])
    for version in filter(lambda version: version >= begin, index.bases):
        try:
            return Base.open(index.directory.path / base_name(version))
        except LogError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _row_of(tensors: Arrays, group: str, history: RowHistory) -> int | None:
    if f"{group}.id" not in tensors:
        return None
    here = np.flatnonzero(tensors[f"{group}.id"] == history.id)
    here = here[tensors[f"{group}.feature"][here] == history.feature]
    return int(here[0]) if len(here) else None


def _key(
    feature: int, row_id: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint16]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return np.array([feature], np.uint16), np.array([row_id], np.int64)


def _length(vector: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(np.sqrt((vector**2).sum()))


@dataclass(frozen=True)
class TableSize:
    """A table, and its rows and bytes in the base of a version."""

    name: str  # empty: the main table
    dim: int
    state_width: int  # numbers beside the vector: the optimizer's state and the wide part's
    wide_width: int  # of these, the wide part's
    features: tuple[str, ...]  # that have their rows here; empty: all that no other table holds
    rows: int
    bytes: int


def table_sizes(image: VersionImage) -> list[TableSize]:
    """Return the tables of a version, the main one first."""
    names, manifest = image.schema.row_names(), image.base.manifest
    return [
        TableSize(
            table.name,
            table.spec.dim,
            table.spec.state_width,
            table.spec.wide_width,
            tuple(names[feature] for feature in table.spec.features),
            len(table.base_rows(image.base)),
            manifest.table_bytes(table.name),
        )
        for table in image.tables
    ]
