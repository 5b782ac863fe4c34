"""Routes of versions: the list, one version's manifest, and waiting for the next version."""

import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.errors import gone
from springtide.app.serving.http.middleware import RequestLimits
from springtide.app.serving.http.responses import json_with_etag
from springtide.app.serving.http.route import ETAGS, NOT_MODIFIED, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.versions import pin_documents, pins_of, pins_tag, resolve_version, version_of_log

routes = Routes("The model")

MAX_WAIT_SECONDS = 60.0
# how often a waiting request looks whether its client is still there
DISCONNECT_CHECK_SECONDS = 2.0


class VersionResponse(msgspec.Struct):
    """A version's manifest; checksums are hexadecimal."""

    version: int
    name: str
    epoch: int
    count: int
    parent: str
    checksum: str
    created_ms: int
    complete_until_ms: int
    positions: dict[str, Any]
    scores: dict[str, Any]


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


class VersionParts(NamedTuple):
    """The objects that the routes of this module use."""

    log_path: Path
    replica: Replica
    limits: RequestLimits
    pool: BoundedPool


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
    parts: VersionParts = request.app.state.versions

    def read() -> Response:
        number = None if before is None else resolve_version(parts.log_path, before)
        pins = pins_of(parts.log_path)
        found = parts.replica.versions.newest(limit=limit, before=number)
        document: dict[str, Any] = {
            "versions": [entry.document() for entry in found],
            "next_before": found[-1].number if len(found) == limit else None,
            "pins": pin_documents(pins),
        }
        newest = f"{found[0].checksum:016x}" if found else "none"
        return json_with_etag(request, document, f'"{newest}-{limit}-{number}{pins_tag(pins)}"')

    return await parts.pool.run(read)


@routes.add(
    "GET",
    "/v1/versions/latest",
    **VERSION,
    errors=(422, 503),
    other_statuses={**NOT_MODIFIED, 204: "No later version came in time."},
    response_headers=("ETag",),
    throttled=False,
)
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
    parts: VersionParts = request.app.state.versions

    def read() -> Response:
        number = resolve_version(parts.log_path, v)
        entry = parts.replica.versions.find(number) or version_of_log(parts.log_path, number)
        pins = [pin for pin in pins_of(parts.log_path) if pin.version == number]
        document = entry.document() | {"pins": [pin.name for pin in pins]}
        etag = f'"{entry.checksum:016x}{pins_tag(pins)}"'
        return json_with_etag(request, document, etag, {"X-Springtide-Version": str(number)})

    return await parts.pool.run(read)


def _manifest(request: Request, replica: Replica, number: int) -> Response:
    entry = replica.versions.find(number)
    if entry is None:
        raise gone(number, replica.versions.oldest)
    return json_with_etag(request, entry.document(), entry.etag, {"X-Springtide-Version": str(number)})
