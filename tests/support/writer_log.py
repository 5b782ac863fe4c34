"""Logs of a few keys, by the real writer or a team of them: each row holds its value, so that a reader can check it.

With `TABLES` it has three tables: rows of users, wider ones of items, and crosses without states.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import numpy as np

from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.tables import tables_from, tables_of
from springtide.app.version_log.write.ranks import LogRanks, RankStore
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.sharding.route import owners_of
from springtide_client.format.records import Head, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.keys import CROSSES, hash_keys
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user_id", "item_id"))
TABLE = TableSpec(dim=2, state_width=1, seed=7, init_scale=0.01)
DIM = TABLE.dim
WINDOW = 100  # samples of the scores' window

Key = tuple[int, int]
Row = tuple[float, int]  # value, last seen
ITEMS = TableSpec(dim=3, state_width=2, seed=7, init_scale=0.01, features=[1])
PAIRS = TableSpec(dim=2, state_width=0, seed=7, init_scale=0.0, features=[CROSSES])
TABLES = {"dim3": ITEMS, "crosses": PAIRS}
FEATURES = (0, 1, CROSSES)


def config(path: Path, **changes: object) -> LogConfig:
    """Return a configuration that fsyncs only when asked."""
    return LogConfig(**{"path": path, "durable_seconds": 3600.0, "onnx": False, **changes})


def row_tensors(rows: dict[Key, Row], forgotten: list[Key] = []) -> Arrays:  # noqa: B006
    """Return the arrays of a version with these rows and tombstones."""
    return {
        "rows.feature": np.array([key[0] for key in rows], np.uint16),
        "rows.id": np.array([key[1] for key in rows], np.int64),
        "rows.value": np.array([[value, -value] for value, _ in rows.values()], np.float32).reshape(-1, DIM),
        "rows.state": np.array([[value * 10] for value, _ in rows.values()], np.float32).reshape(-1, 1),
        "rows.count": np.array([int(value) for value, _ in rows.values()], np.int64),
        "rows.last_seen": np.array([seen for _, seen in rows.values()], np.int64),
        "forgotten.feature": np.array([key[0] for key in forgotten], np.uint16),
        "forgotten.id": np.array([key[1] for key in forgotten], np.int64),
    }


def rows_of(layer: RowBlock) -> dict[Key, Row]:
    """Return the live rows of a layer, after checking that all columns of each belong together."""
    out: dict[Key, Row] = {}
    for i in range(len(layer)):
        if layer.tombstone is not None and layer.tombstone[i]:
            continue
        value = float(layer.value[i, 0])
        assert layer.value[i, 1] == -value
        assert layer.count[i] == int(value)
        assert layer.state[i, 0] == np.float32(value * 10)
        out[int(layer.feature[i]), int(layer.id[i])] = (value, int(layer.last_seen[i]))
    return out


def first_base(
    path: Path, head: Head, program: bytes = b"program", tables: Mapping[str, TableSpec] = MappingProxyType({})
) -> Path:
    """Write an empty base at `head`."""
    return write_base(
        path,
        BaseImage(
            head=head,
            schema=SCHEMA,
            table=TableImage(spec=TABLE),
            tables={name: TableImage(spec=spec) for name, spec in tables.items()},
            model=ModelIdentity(name="logistic"),
            meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
            dense={"dense.w": np.zeros(3, np.float32)},
            program=program,
        ),
    )


class MemoryStore:
    """A store within one process, for processes that have no use for torch."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("timed out")

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None


class Team:
    """The writers of one epoch, by rank."""

    def __init__(self, writers: list[LogWriter]) -> None:
        self.writers = writers

    @property
    def lead(self) -> LogWriter:
        return self.writers[0]

    def put(self, rows: dict[Key, Row], forgotten: list[Key] = [], **meta: object) -> int:  # noqa: B006
        """Write a version: every rank appends the rows of its keys. Returns its number."""
        size = len(self.writers)
        numbers = set()
        meta = {"fingerprint": SCHEMA.fingerprint(), **meta}
        for rank in reversed(range(size)):
            numbers.add(self.writers[rank].append_owned(VersionMeta(**meta), self.share(rank, rows, forgotten)))
        (number,) = numbers
        return number

    def share(self, rank: int, rows: dict[Key, Row], forgotten: list[Key]) -> Arrays:
        """Return what one rank writes of a version."""
        size = len(self.writers)
        own = {key: row for key, row in rows.items() if owner(key, size) == rank}
        return row_tensors(own, [key for key in forgotten if owner(key, size) == rank])

    def append(self, meta: VersionMeta, tensors: Arrays) -> int:
        """Append a version whose tensors are rank 0's."""
        for writer in self.writers[1:]:
            writer.append_owned(meta, {})
        return self.lead.append_owned(meta, tensors)

    def sync(self) -> None:
        """Make everything durable; all ranks at once, as they do."""
        with ThreadPoolExecutor(len(self.writers)) as threads:
            for done in [threads.submit(writer.sync) for writer in self.writers]:
                done.result()

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.writers)) as threads:
            list(threads.map(LogWriter.close, self.writers))


class WriterLog:
    """Opens one writer or team of writers after another over one log, as successive trainers do.

    `tables`: those beside the main one. With TABLES it takes the same arrays as a log of one table, and writes each
    row into its table, with more or fewer numbers.
    """

    def __init__(
        self,
        path: Path,
        new_store: Callable[[], RankStore] = MemoryStore,
        *,
        tables: Mapping[str, TableSpec] = MappingProxyType({}),
    ) -> None:
        self.path, self._new_store, self.tables = path, new_store, tables
        self.directory = LogDirectory(path)

    @contextmanager
    def writer(self, **changes: object) -> Iterator[LogWriter]:
        """Open a writer and close it at the end; a new log gets its first base."""
        with self.open(**changes) as writer:
            yield writer

    def open(self, *, take_over: bool = False, wait_seconds: float = 0.2, **changes: object) -> LogWriter:
        writer = LogWriter.open(
            config(self.path, **changes), schema=SCHEMA, take_over=take_over, wait_seconds=wait_seconds
        )
        if writer.start_head is None:
            first_base(self.path, writer.first_base_head, tables=self.tables)
            writer.start_after(writer.first_base_head)
        if self.tables:
            append = writer.append
            writer.append = lambda meta, tensors: append(meta, by_table(tensors))  # type: ignore[method-assign]
        return writer

    def kill(self, writer: LogWriter) -> None:
        """End a writer of this process as SIGKILL would: nothing is synced, the lock is released."""
        writer.states.stop()
        writer._queue.fail(RuntimeError("killed"))
        writer._queue.stop()
        writer._lock.release()

    def rows_in(self, base: Base) -> dict[Key, Row]:
        """Return the rows of a base, after checking that all columns of each belong together."""
        found: dict[Key, Row] = {}
        for table in tables_of(base.manifest):
            found |= rows_of_table(table.name, table.base_layer(base))
        return found

    def heads(self) -> list[Head]:
        """Return the heads of the records after the newest base."""
        base = self.directory.open_base()
        return [record.head for record in self.directory.records(base.head if base else None)]

    def start(
        self,
        num_ranks: int,
        *,
        timeout_seconds: float = 60.0,
        take_over: bool = False,
        **changes: object,
    ) -> Team:
        """Open the writers of a team; a new log gets its first base."""
        shared = self._new_store()
        writers = [
            LogWriter.open(
                config(self.path, **changes),
                schema=SCHEMA,
                take_over=take_over,
                wait_seconds=0.2,
                ranks=LogRanks(shared, rank, num_ranks, timeout_seconds),
            )
            for rank in range(num_ranks)
        ]
        if writers[0].start_head is None:
            first_base(self.path, writers[0].first_base_head, tables=self.tables)
            for writer in writers:
                writer.start_after(writer.first_base_head)
        return Team(writers)

    @contextmanager
    def team(self, num_ranks: int, **changes: object) -> Iterator[Team]:
        team = self.start(num_ranks, **changes)
        try:
            yield team
        finally:
            team.close()

    def kill_team(self, team: Team) -> None:
        """End all writers of a team as SIGKILL would."""
        for writer in team.writers:
            self.kill(writer)

    def read(self) -> tuple[Head, dict[Key, Row]]:
        """Return where a reader that starts now ends, and the rows it has."""
        base = self.directory.open_base()
        assert base is not None
        rows, head = self.rows_in(base), base.head
        for record in self.directory.records(base.head):
            apply(rows, record.tensors())
            head = record.head
        return head, rows


def by_table(tensors: Arrays) -> Arrays:
    """Move the rows of a version into their tables; those that are there already stay."""
    found = {name: array for name, array in tensors.items() if not name.startswith("rows.")}
    if not len(tensors.get("rows.id", ())):
        return found
    for table in tables_from(TABLE, TABLES):
        here = np.flatnonzero(table.holds(tensors["rows.feature"]))
        columns = {name: array[here] for name, array in tensors.items() if name.startswith("rows.")}
        if not len(here):
            continue
        if table.name == "dim3":
            columns["rows.value"] = np.pad(columns["rows.value"], ((0, 0), (0, 1)))
            columns["rows.state"] = columns["rows.state"] * np.array([[1, 2]], np.float32)
        elif table.name == "crosses":
            del columns["rows.state"]
        found |= {table.record_tensor(name): array for name, array in columns.items()}
    return found


def rows_of_table(name: str, layer: RowBlock) -> dict[Key, Row]:
    """Return the live rows of a table's layer, after checking that all columns of each belong together."""
    states = layer.state
    if name == "dim3":
        assert (layer.value[:, 2] == 0).all()
        assert (states[:, 1] == 2 * states[:, 0]).all()
    elif name == "crosses":
        assert states.shape[1] == 0
        states = layer.value[:, :1] * np.float32(10)
    return rows_of(replace(layer, value=layer.value[:, :2], state=states[:, :1]))


def put(writer: LogWriter, value: float, **meta: object) -> Head:
    """Append a version with one row."""
    return writer.append(VersionMeta(**meta), row_tensors({(0, int(value)): (value, 100)}))


def sync_twice(writer: LogWriter) -> None:
    """Make all versions durable, and append one that records it: the compactor relies on nothing else."""
    writer.sync()
    writer.append(VersionMeta(), {})
    writer.sync()


def compact(log: WriterLog, **changes: int) -> Base | None:
    """Write the next base, if there is a newer durable version, and open it."""
    path = compact_log(log.directory, window_samples=WINDOW, **changes)
    return None if path is None else Base.open(path)


def apply(rows: dict[Key, Row], tensors: Arrays) -> None:
    """Apply a record to a dictionary."""
    for feature, row_id in zip(tensors["forgotten.feature"].tolist(), tensors["forgotten.id"].tolist(), strict=True):
        rows.pop((feature, row_id), None)
    names = [f"rows.{name}" for name in ("feature", "id", "value", "last_seen")]
    for feature, row_id, value, seen in zip(*(tensors[name].tolist() for name in names), strict=True):
        rows[feature, row_id] = (value[0], seen)


def owner(key: Key, num_ranks: int) -> int:
    """Return the rank that a key belongs to."""
    key_hash = hash_keys(np.array([key[0]], np.uint16), np.array([key[1]], np.int64))
    return int(owners_of(key_hash, num_ranks)[0])
