"""Routes of versions: the list, one version's manifest, and waiting for the next version."""

import time
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.serving.http.errors import gone
from app.serving.http.request_limits import RequestLimits
from app.serving.http.responses import json_with_etag
from app.serving.model.replica import Replica

router = APIRouter(tags=["The model"])

MAX_WAIT_SECONDS = 60.0
# how often a waiting request looks whether its client is still there
DISCONNECT_CHECK_SECONDS = 2.0


class VersionParts(NamedTuple):
    """What the routes of this module use."""

    replica: Replica
    limits: RequestLimits


@router.get("/v1/versions")
async def versions(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """Manifests of versions, newest first"""
    parts: VersionParts = request.app.state.versions
    found = parts.replica.versions.newest(limit=limit, before=before)
    next_before = found[-1].number if len(found) == limit else None
    document = {"versions": [entry.document() for entry in found], "next_before": next_before}
    newest = f"{found[0].checksum:016x}" if found else "none"
    return json_with_etag(request, document, f'"{newest}-{limit}-{before}"')


@router.get("/v1/versions/latest")
async def latest(
    request: Request,
    after: Annotated[int | None, Query(ge=0)] = None,
    wait_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
) -> Response:
    """The newest version's manifest

    after=V&wait_seconds=30 waits for a version beyond V; 204 when none came.
    """
    parts: VersionParts = request.app.state.versions
    replica = parts.replica
    if after is None:
        return _manifest(request, replica, replica.require_view().version)
    parts.limits.open_stream()
    try:
        deadline = time.monotonic() + wait_seconds
        while True:
            view = replica.view
            if view is not None and view.version > after:
                return _manifest(request, replica, view.version)
            left = deadline - time.monotonic()
            if left <= 0 or replica.stopping:
                return Response(status_code=204)
            await replica.wait_for_change(min(left, DISCONNECT_CHECK_SECONDS))
            if await request.is_disconnected():
                return Response(status_code=499)  # only counted: the client is gone
    finally:
        parts.limits.close_stream()


@router.get("/v1/versions/{v}")
async def version(request: Request, v: int) -> Response:
    """One version's manifest; 410 once it is retired"""
    parts: VersionParts = request.app.state.versions
    return _manifest(request, parts.replica, v)


def _manifest(request: Request, replica: Replica, number: int) -> Response:
    entry = replica.versions.find(number)
    if entry is None:
        raise gone(number, replica.versions.oldest)
    return json_with_etag(request, entry.document(), entry.etag, {"X-Springtide-Version": str(number)})
