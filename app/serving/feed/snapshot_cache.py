"""Snapshots on disk: written when a client asks for one, kept while they fit into [serve] snapshot_bytes."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from springtide.app.serving.http.errors import ApiError, gone, not_ready
from springtide.app.version_log.export.snapshot_file import SnapshotCancelledError, SnapshotFile, view_at_version
from springtide_client.errors import SpringtideError
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from springtide_client.system.files import draft_of


class CachedSnapshot(NamedTuple):
    """A snapshot on disk."""

    path: Path
    etag: str


class SnapshotCache:
    """Writes snapshots on request and keeps the most recently requested ones within `max_bytes`.

    Used by one thread at a time; several workers may share the folder.
    """

    def __init__(self, log_path: Path, folder: Path, *, max_bytes: int) -> None:
        self._directory = LogDirectory(log_path)
        self._folder = folder
        self._max_bytes = max_bytes
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Cancel the snapshot that is being written."""
        self._stopping.set()

    def get(self, view: View, version: int, *, rows: str) -> CachedSnapshot:
        """Return the snapshot of a version, with `rows` "all" or "none"; `view` is the newest view at hand.

        Raises ApiError 410 if the log no longer reaches the version, 507 if the file is too large or the disk full,
        503 if the server is stopping.
        """
        for path in self._folder.glob(f"snapshot-{version:020d}-*-{rows}.safetensors"):
            with suppress(FileNotFoundError):  # another worker made room
                os.utime(path)
                return CachedSnapshot(path, _etag(path))
        if view.version == version:
            # a file under the view may have been retired: then a newer base still reaches the version
            with suppress(FileNotFoundError, SpringtideError):
                return self._create(view, rows=rows)
        found = view_at_version(self._directory, version)
        if found is None:
            raise gone(version, None)
        try:
            return self._create(found, rows=rows)
        except (FileNotFoundError, SpringtideError):
            raise gone(version, None) from None

    def _create(self, view: View, *, rows: str) -> CachedSnapshot:
        name = f"snapshot-{view.version:020d}-{view.tip.checksum:016x}-{rows}.safetensors"
        path = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # a cleaner of temporary files may have removed it
            snapshot = SnapshotFile.of(view, self._directory, with_rows=rows == "all")
            self._make_room(snapshot.num_bytes)
            with draft_of(path) as draft:
                snapshot.write(draft, is_cancelled=self._stopping.is_set)
        except SnapshotCancelledError:
            raise not_ready("the server is stopping") from None
        except FileNotFoundError:
            raise
        except OSError as error:
            message = f"the snapshot cannot be written to {self._folder}: {error.strerror}"
            hint = "ask with rows=none, make room there, or set another [serve] cache_path"
            raise ApiError(507, "snapshot_disk", message, hint) from None
        return CachedSnapshot(path, _etag(path))

    def _make_room(self, num_bytes: int) -> None:
        """Remove the least recently requested snapshots until `num_bytes` more fit; ApiError 507 if they never can."""
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


def _etag(path: Path) -> str:
    return f'"{path.stem}"'
