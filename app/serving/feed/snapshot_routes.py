"""The route of snapshots: the model at one version as one file."""

from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.feed.snapshot_cache import SnapshotCache
from springtide.app.serving.http.errors import gone, invalid
from springtide.app.serving.http.responses import FileResponse
from springtide.app.serving.http.route import BINARY, FILE_STATUSES, RANGES, RAW, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.versions import resolve_version

routes = Routes("The model")


class SnapshotParts(NamedTuple):
    """The objects that the route of this module uses."""

    log_path: Path
    replica: Replica
    cache: SnapshotCache
    pool: BoundedPool


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
    parts: SnapshotParts = request.app.state.snapshots
    if rows not in ("all", "none"):
        raise invalid(f"rows = {rows!r}", "rows is all or none")
    view = parts.replica.require_view()

    def open_snapshot() -> FileResponse:
        number = view.version if version is None else resolve_version(parts.log_path, version)
        if number > view.version:
            raise gone(number, parts.replica.versions.oldest)
        cached = parts.cache.get(view.client_view, number, rows=rows)
        response = FileResponse(cached.path, etag=cached.etag)
        response.extra_headers = {
            "x-springtide-version": str(number),
            "content-disposition": f'attachment; filename="springtide-{number}.safetensors"',
        }
        return response

    return await parts.pool.run(open_snapshot)
