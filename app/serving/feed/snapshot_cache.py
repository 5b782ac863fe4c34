"""One model at one version as one self-contained file: dense parameters, rows, texts, program, manifest.

safetensors layout. Equal versions of a log give equal bytes, so a download may be resumed at another server.
"""

# n rows, D dimension
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from springtide_client.errors import SpringtideError
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import TensorShape, tensor_layout
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from springtide_client.rows.layers import empty_layer, sorted_layer

from app.serving.http.errors import ApiError, gone, not_ready
from app.serving.model.log_follower import ServedView
from app.serving.model.view import ModelView
from app.version_log.read.id_strings import id_strings_of, merge_id_strings
from app.version_log.read.live_rows import count_live_rows, live_rows

KNOWN = 0
COLUMNS = ("feature", "id", "value", "count", "last_seen")


class CachedSnapshot(NamedTuple):
    """A snapshot on disk."""

    path: Path
    etag: str


class SnapshotCache:
    """Writes snapshots when they are asked for and keeps the newest asked-for ones within `max_bytes`.

    One thread at a time.
    """

    def __init__(self, log_path: Path, folder: Path, *, max_bytes: int) -> None:
        self._directory = LogDirectory(log_path)
        self._folder = folder
        self._max_bytes = max_bytes
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Give up what is being written."""
        self._stopping.set()

    def get(self, view: ModelView, version: int, *, rows: str) -> CachedSnapshot:
        """The snapshot of a version, `rows` being all or none; ApiError 410 where the log no longer leads there."""
        for path in self._folder.glob(f"snapshot-{version:020d}-*-{rows}.safetensors"):
            with suppress(FileNotFoundError):  # another worker made room
                os.utime(path)
                return CachedSnapshot(path, _etag(path))
        assert isinstance(view, ServedView)
        if view.version == version:
            with suppress(FileNotFoundError, SpringtideError):  # what it lies on was retired: a newer base leads there
                return self._make(view.inner, rows=rows)
        found = view_at_version(self._directory, version)
        if found is None:
            raise gone(version, None)
        try:
            return self._make(found, rows=rows)
        except (FileNotFoundError, SpringtideError):
            raise gone(version, None) from None

    def _make(self, found: View, *, rows: str) -> CachedSnapshot:
        version = found.version
        path = self._folder / f"snapshot-{version:020d}-{found.tip.checksum:016x}-{rows}.safetensors"
        draft = path.with_suffix(f".{os.getpid()}.tmp")  # workers share the folder
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # whoever cleans up may have taken it
            self._write(found, draft, with_rows=rows == "all")
            draft.rename(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            message = f"the snapshot cannot be written to {self._folder}: {error.strerror}"
            hint = "ask with rows=none, make room there, or set another [serve] cache_path"
            raise ApiError(507, "snapshot_disk", message, hint) from None
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        return CachedSnapshot(path, _etag(path))

    def _write(self, view: View, draft: Path, *, with_rows: bool) -> None:
        snapshot = Snapshot.of(view, with_rows=with_rows)
        self._make_room(tensor_layout(snapshot.shapes, snapshot.metadata).num_bytes)
        snapshot.write(draft, stopping=self._stopping)

    def _make_room(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            message = f"the snapshot has {num_bytes:,} bytes, [serve] snapshot_bytes allows {self._max_bytes:,}"
            raise ApiError(507, "snapshot_too_large", message, "raise snapshot_bytes, or ask with rows=none")
        files: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("snapshot-*.safetensors"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        files.sort(reverse=True)
        total = sum(size for _, size, _ in files)
        while files and total + num_bytes > self._max_bytes:
            _, size, path = files.pop()
            total -= size
            path.unlink(missing_ok=True)


def view_at_version(directory: LogDirectory, version: int) -> View | None:
    """The view at a version, from the newest base at or before it; None where the log no longer leads there."""
    with suppress(SpringtideError, FileNotFoundError):
        for path in reversed(directory.bases()):
            if int(path.name.removeprefix("base-")) > version:
                continue
            view = View.open(path)
            if view.version == version:
                return view
            for record in directory.records(view.tip):
                view = view.apply(record).merged()
                if view.version >= version:
                    return view if view.version == version else None
            return None
    return None


class Snapshot(NamedTuple):
    """What a snapshot's file will hold."""

    view: View
    small: dict[str, npt.NDArray[Any]]  # everything but the rows: it fits into memory
    shapes: dict[str, TensorShape]
    metadata: dict[str, str]
    with_rows: bool

    @staticmethod
    def of(view: View, *, with_rows: bool) -> "Snapshot":
        """Of a view over a log's folder, from which the texts behind its ids are read."""
        num_rows = count_live_rows(view) if with_rows else 0
        small = dense_tensors(view) | {f"texts.{name}": array for name, array in live_id_strings(view).items()}
        shapes = {
            "rows.feature": TensorShape(np.dtype(np.uint16), (num_rows,)),
            "rows.id": TensorShape(np.dtype(np.int64), (num_rows,)),
            "rows.value": TensorShape(np.dtype(np.float32), (num_rows, view.dim)),
            "rows.count": TensorShape(np.dtype(np.int64), (num_rows,)),
            "rows.last_seen": TensorShape(np.dtype(np.int64), (num_rows,)),
        } | {name: TensorShape(array.dtype, array.shape) for name, array in small.items()}
        base = view.base.manifest
        manifest: dict[str, Any] = {
            "version": view.version,
            "checksum": f"{view.tip.checksum:016x}",
            "schema": base.schema,
            "table": base.table,
            "model": base.model,
            "meta": view.meta,
        }
        metadata = {"manifest": msgspec.json.encode(manifest).decode(), "format": "springtide-snapshot-1"}
        return Snapshot(view, small, shapes, metadata, with_rows)

    def write(self, path: Path, *, stopping: threading.Event) -> None:
        """Write the file, a bounded number of rows in memory at a time."""
        writer = TensorWriter(path, self.shapes, self.metadata)
        try:
            for name, array in self.small.items():
                writer.write(name, 0, array)
            at = 0
            for rows in live_rows(self.view) if self.with_rows else ():
                if stopping.is_set():
                    raise not_ready("the server ends")
                for column in COLUMNS:
                    writer.write(f"rows.{column}", at, getattr(rows, column))
                at += len(rows)
        finally:
            writer.close()


def dense_tensors(view: View) -> dict[str, npt.NDArray[Any]]:
    """The dense net's parameters, and its program."""
    # the program's leading arguments, in its order: constants among them stay inside the program
    named = zip(view.model._leading, view.parameters.tensors, strict=True)
    tensors = {name: tensor.numpy() for name, tensor in named if name in view.model.parameter_names}
    program = np.frombuffer((view.base.path / "model.pt2").read_bytes(), np.uint8)
    return {**{f"dense.{name}": tensor for name, tensor in tensors.items()}, "model.pt2": program}


def live_id_strings(view: View) -> dict[str, npt.NDArray[Any]]:
    """The texts behind ids that have a row, by (feature, id): equal at equal versions, whatever base leads there."""
    base = view.base
    parts = [base.id_strings] if base.id_strings is not None else []
    if view.version != base.tip.number:
        for record in LogDirectory(base.path.parent).records(base.tip):
            if record.number > view.version:
                break
            if (texts := id_strings_of(record.tensors())) is not None:
                parts.append(texts)
    known = merge_id_strings(parts, empty_layer(view.dim))
    if known is None:
        return {}
    _, status = view.lookup(known["feature"], known["id"])
    if bool(np.all(status == KNOWN)):
        return known
    dead = np.flatnonzero(status != KNOWN)
    nothing = np.zeros((len(dead), view.dim), np.float32)
    times = np.zeros(len(dead), np.int64)
    return (
        merge_id_strings([known], sorted_layer(known["feature"][dead], known["id"][dead], nothing, times, times)) or {}
    )


def _etag(path: Path) -> str:
    return f'"{path.stem}"'
