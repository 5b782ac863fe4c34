"""A log of a few keys, written by the real writer: each row holds its value, so that a reader can check it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import numpy as np

from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.row_layer import RowLayer
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user_id", "item_id"))
TABLE = TableSpec(dim=2, state_width=1, seed=7, init_scale=0.01)
DIM = TABLE.dim
WINDOW = 100  # samples of the scores' window

Key = tuple[int, int]
Row = tuple[float, int]  # value, last seen


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


def rows_of(layer: RowLayer) -> dict[Key, Row]:
    """Return the live rows of a layer, after checking that all columns of each belong together."""
    out: dict[Key, Row] = {}
    for i in range(len(layer)):
        if layer.tombstone is not None and layer.tombstone[i]:
            continue
        value = float(layer.value[i, 0])
        assert layer.value[i, 1] == -value
        assert layer.count[i] == int(value)
        assert layer.state is not None
        assert layer.state[i, 0] == np.float32(value * 10)
        out[int(layer.feature[i]), int(layer.id[i])] = (value, int(layer.last_seen[i]))
    return out


def first_base(
    path: Path, tip: Tip, program: bytes = b"program", tables: Mapping[str, TableSpec] = MappingProxyType({})
) -> Path:
    """Write an empty base at `tip`."""
    return write_base(
        path,
        BaseImage(
            tip=tip,
            schema=SCHEMA,
            table=TABLE,
            tables={name: TableImage(spec=spec) for name, spec in tables.items()},
            model=ModelIdentity(name="logistic"),
            meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
            dense={"dense.w": np.zeros(3, np.float32)},
            program=program,
        ),
    )


class WriterLog:
    """Opens one writer after another over one log, as successive trainers do."""

    tables: Mapping[str, TableSpec] = MappingProxyType({})  # beside the main one

    def __init__(self, path: Path) -> None:
        self.path = path
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
        if writer.start_tip is None:
            first_base(self.path, writer.first_base_tip, tables=self.tables)
            writer.start_after(writer.first_base_tip)
        return writer

    def kill(self, writer: LogWriter) -> None:
        """End a writer of this process as SIGKILL would: nothing is synced, the lock is released."""
        writer._states.stop()
        writer._queue.fail(RuntimeError("killed"))
        writer._queue.stop()
        writer._lock.release()

    def rows_in(self, base: Base) -> dict[Key, Row]:
        """Return the rows of a base, after checking that all columns of each belong together."""
        return rows_of(base.main.layer)

    def tips(self) -> list[Tip]:
        """Return the tips of the records after the newest base."""
        base = self.directory.open_base()
        return [record.tip for record in self.directory.records(base.tip if base else None)]


def put(writer: LogWriter, value: float, **meta: object) -> Tip:
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
