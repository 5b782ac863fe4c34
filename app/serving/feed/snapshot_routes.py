"""The route of snapshots: the model at one version as one file, kept on disk for those who ask next."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import ApiError, gone, invalid, not_ready
from springtide.app.serving.http.responses import FileResponse
from springtide.app.serving.http.route import BINARY, FILE_STATUSES, RANGES, RAW, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.versions import resolve_version
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
        name = f"snapshot-{view.version:020d}-{view.head.checksum:016x}-{rows}.safetensors"
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


routes = Routes("The model")


@routes.add(
    "GET",
    "/v1/snapshot",
    scope="read",
    response={RAW: BINARY},
    errors=(410, 422, 503, 507),
    headers=RANGES,
    other_statuses=FILE_STATUSES,
    response_headers=("ETag", "X-Springtide-Version"),
    head=True,
)
async def snapshot(
    request: Request, version: Annotated[str | None, Query()] = None, rows: Annotated[str, Query()] = "all"
) -> Response:
    """The model at one version, as one self-contained file

    safetensors layout: dense.*, rows.*, texts.* and the exported program; the manifest is in its metadata.
    `version` is a number, epoch.count, a pin, @2026-11-21T10:00Z or event@2026-11-21T10:00Z. rows=none leaves the rows
    out. To resume, send the version of the response with Range and If-Range.
    """
    state = request.app.state
    replica: Replica = state.replica
    cache: SnapshotCache = state.snapshots
    if rows not in ("all", "none"):
        raise invalid(f"rows = {rows!r}", "rows is all or none")
    view = replica.require_view()

    def open_snapshot() -> FileResponse:
        number = view.version if version is None else resolve_version(state.log.path, version)
        if number > view.version:
            raise gone(number, replica.versions.oldest)
        cached = cache.get(view.client_view, number, rows=rows)
        response = FileResponse(cached.path, etag=cached.etag)
        response.extra_headers = {
            "x-springtide-version": str(number),
            "content-disposition": f'attachment; filename="springtide-{number}.safetensors"',
        }
        return response

    pool: BoundedPool = state.pools.snapshots
    return await pool.run(open_snapshot)
