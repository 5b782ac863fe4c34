"""The route of snapshots: the model at one version as one file."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.serving.bounded_pool import BoundedPool
from app.serving.feed.snapshot_cache import SnapshotCache
from app.serving.http.errors import gone, invalid
from app.serving.http.responses import FileResponse
from app.serving.model.replica import Replica

router = APIRouter(tags=["The model"])


class SnapshotParts(NamedTuple):
    """What the route of this module uses."""

    replica: Replica
    cache: SnapshotCache
    pool: BoundedPool


@router.head("/v1/snapshot", include_in_schema=False)
@router.get("/v1/snapshot")
async def snapshot(
    request: Request, version: Annotated[int | None, Query(ge=0)] = None, rows: Annotated[str, Query()] = "all"
) -> Response:
    """The model at one version, as one self-contained file

    safetensors layout: dense.*, rows.*, texts.* and the exported program; the manifest is in its metadata.
    rows=none leaves the rows out. To resume, send the version of the response with Range and If-Range.
    """
    parts: SnapshotParts = request.app.state.snapshots
    if rows not in ("all", "none"):
        raise invalid(f"rows = {rows!r}", "rows is all or none")
    view = parts.replica.require_view()
    number = view.version if version is None else version
    if number > view.version:
        raise gone(number, parts.replica.versions.oldest)

    def open_snapshot() -> FileResponse:
        cached = parts.cache.get(view.client_view, number, rows=rows)
        response = FileResponse(cached.path, etag=cached.etag)
        response.extra_headers = {
            "x-springtide-version": str(number),
            "content-disposition": f'attachment; filename="springtide-{number}.safetensors"',
        }
        return response

    return await parts.pool.run(open_snapshot)
