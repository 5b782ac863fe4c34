"""Routes of versions: the list, one version's manifest, and waiting for the next version."""

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import gone
from springtide.app.serving.http.middleware import RequestLimits
from springtide.app.serving.http.responses import json_with_etag
from springtide.app.serving.http.route import ETAGS, NOT_MODIFIED, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.versions import (
    VersionResponse,
    pins_of,
    pins_tag,
    resolve_version,
    version_of_log,
)

routes = Routes("The model")

MAX_WAIT_SECONDS = 60.0
# how often a waiting request looks whether its client is still there
DISCONNECT_CHECK_SECONDS = 2.0


class NamedPin(msgspec.Struct, forbid_unknown_fields=True):
    """A version that is kept, by its name."""

    name: str
    version: int
    created_ms: int


class VersionsResponse(msgspec.Struct, forbid_unknown_fields=True):
    """Versions, newest first; `next_before` is the `before` of the next request, None at the end."""

    versions: list[VersionResponse]
    next_before: int | None
    pins: list[NamedPin]


VERSION: dict[str, Any] = {"scope": "read", "response": VersionResponse, "headers": ETAGS}


@routes.add(
    "GET",
    "/v1/versions",
    scope="read",
    response=VersionsResponse,
    errors=(410, 422, 503),
    headers=ETAGS,
    other_statuses=NOT_MODIFIED,
)
async def versions(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[str | None, Query()] = None,
) -> Response:
    """Manifests of versions, newest first, and the pinned versions

    `before` is a number, epoch.count, a pin, @2026-11-21T10:00Z (wall time) or event@2026-11-21T10:00Z.
    """
    state = request.app.state
    replica: Replica = state.replica
    log_path: Path = state.log.path

    def read() -> Response:
        number = None if before is None else resolve_version(log_path, before)
        pins = pins_of(log_path)
        found = replica.versions.newest(limit=limit, before=number)
        document = VersionsResponse(
            versions=[VersionResponse.of(version) for version in found],
            next_before=found[-1].number if len(found) == limit else None,
            pins=[NamedPin(pin.name, pin.version, pin.created_ms) for pin in pins],
        )
        newest = f"{found[0].checksum:016x}" if found else "none"
        return json_with_etag(request, document, f'"{newest}-{limit}-{number}{pins_tag(pins)}"')

    pool: BoundedPool = state.pools.files
    return await pool.run(read)


@routes.add(
    "GET",
    "/v1/versions/latest",
    **VERSION,
    errors=(422, 503),
    other_statuses={**NOT_MODIFIED, 204: "No later version came in time."},
    response_headers=("ETag",),
    throttled=False,
)
async def latest_version(
    request: Request,
    after: Annotated[int | None, Query(ge=0)] = None,
    wait_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
) -> Response:
    """The newest version's manifest

    after=V&wait_seconds=30 waits for a version beyond V; 204 when none came.
    """
    replica: Replica = request.app.state.replica
    limits: RequestLimits = request.app.state.limits
    if after is None:
        return _manifest(request, replica, replica.require_view().version)
    limits.open_stream()
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
        limits.close_stream()


@routes.add(
    "GET",
    "/v1/versions/{v}",
    **VERSION,
    errors=(410, 422, 503),
    other_statuses=NOT_MODIFIED,
    response_headers=("ETag",),
)
async def version(request: Request, v: str) -> Response:
    """One version's manifest, with its pins; 410 once it is retired

    v is a number, epoch.count, a pin, @2026-11-21T10:00Z (wall time) or event@2026-11-21T10:00Z: the newest version at
    or before that instant that can be rebuilt.
    """
    state = request.app.state
    replica: Replica = state.replica
    log_path: Path = state.log.path

    def read() -> Response:
        number = resolve_version(log_path, v)
        entry = replica.versions.find(number) or version_of_log(log_path, number)
        pins = [pin for pin in pins_of(log_path) if pin.version == number]
        document = VersionResponse.of(entry, [pin.name for pin in pins])
        etag = f'"{entry.checksum:016x}{pins_tag(pins)}"'
        return json_with_etag(request, document, etag, {"X-Springtide-Version": str(number)})

    pool: BoundedPool = state.pools.files
    return await pool.run(read)


def _manifest(request: Request, replica: Replica, number: int) -> Response:
    entry = replica.versions.find(number)
    if entry is None:
        raise gone(number, replica.versions.oldest)
    etag = f'"{entry.checksum:016x}"'
    return json_with_etag(request, VersionResponse.of(entry), etag, {"X-Springtide-Version": str(number)})
