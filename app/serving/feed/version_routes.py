"""The versions and the log itself, for those who follow."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from springtide_client.errors import LogError
from springtide_client.format.records import Record, Tip
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory, base_name
from starlette.responses import Response

from app.serving.feed.log_reader import LogReader
from app.serving.http.errors import gone
from app.serving.http.responses import StreamResponse, json_with_etag
from app.serving.model.version_index import VersionEntry
from app.serving.service import Service

router = APIRouter(tags=["The model"])

MAX_WAIT_SECONDS = 60.0
BATCH_BYTES = 4 << 20
PAUSE_SECONDS = 0.02
# the log, and whether a waiting asker is still there, is looked at so often even if nothing was served meanwhile
LOOK_SECONDS = 2.0


@router.get("/v1/versions")
async def versions(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """Manifests of versions, newest first"""
    service: Service = request.app.state.service
    found = service.replica.versions.newest(limit=limit, before=before)
    following = found[-1].number if len(found) == limit else None
    document = {"versions": [entry.document() for entry in found], "next_before": following}
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
    service: Service = request.app.state.service
    replica = service.replica
    if after is None:
        return _manifest(request, service, replica.require_view().version)
    service.open_stream()
    try:
        deadline = time.monotonic() + wait_seconds
        while True:
            view = replica.view
            if view is not None and view.version > after:
                return _manifest(request, service, view.version)
            left = deadline - time.monotonic()
            if left <= 0 or replica.stopping:
                return Response(status_code=204)
            await replica.wait_for_change(min(left, LOOK_SECONDS))
            if await request.is_disconnected():
                return Response(status_code=499)  # for the counters: nobody reads it
    finally:
        service.close_stream()


@router.get("/v1/versions/{v}")
async def version(request: Request, v: int) -> Response:
    """One version's manifest; 410 once it is retired"""
    return _manifest(request, request.app.state.service, v)


@router.get("/v1/log")
async def log(request: Request, after: Annotated[int, Query(ge=0)]) -> Response:
    """Version records after V, as they are in the log, for as long as the asker listens; 410 where V is not in it"""
    service: Service = request.app.state.service
    service.replica.require_view()
    service.open_stream()
    try:
        reader, records = await asyncio.to_thread(_begin, service, after)
    except BaseException:
        service.close_stream()
        raise

    def end() -> None:
        reader.close()
        service.close_stream()

    return StreamResponse(_frames(service, reader, records), "application/octet-stream", end)


def _begin(service: Service, after: int) -> tuple[LogReader, list[Record]]:
    """A reader behind the version, and what it read first; ApiError 410 where the log does not go on from there."""
    directory = LogDirectory(service.log_path)
    tip = _tip(service, directory, after)
    if tip is None:
        raise gone(after, service.replica.versions.oldest)
    reader = LogReader(directory, tip)
    try:
        return reader, reader.read(tip, BATCH_BYTES)
    except LogError:
        reader.close()
        raise gone(after, service.replica.versions.oldest) from None


def _tip(service: Service, directory: LogDirectory, number: int) -> Tip | None:
    """The version of that number: one this server saw, or a base."""
    entry = service.replica.versions.find(number)
    if entry is not None:
        return entry.tip
    try:
        return read_base_manifest(directory.path / base_name(number)).tip
    except (OSError, LogError):
        return None


async def _frames(service: Service, reader: LogReader, records: list[Record]) -> AsyncIterator[bytes]:
    """1. What the server's own follower has just read. 2. Where that is not what follows: the log."""
    replica, tip = service.replica, reader.start
    while not replica.stopping:
        for record in records:
            yield record.header
            yield record.payload
        tip = records[-1].tip if records else tip
        view = replica.view
        is_newest = view is None or view.version <= tip.number
        if not (records := service.record_cache.after(tip, BATCH_BYTES)) and is_newest:
            await replica.wait_for_change(LOOK_SECONDS)
            records = service.record_cache.after(tip, BATCH_BYTES)
        if not records:
            try:
                records = await asyncio.to_thread(reader.read, tip, BATCH_BYTES)
            except LogError:
                return  # what was sent is no longer part of the log: asking again tells the follower so
            if not records and not is_newest:
                await asyncio.sleep(PAUSE_SECONDS)  # a new epoch begins just now: then nothing can be read


def _manifest(request: Request, service: Service, number: int) -> Response:
    entry: VersionEntry | None = service.replica.versions.find(number)
    if entry is None:
        raise gone(number, service.replica.versions.oldest)
    return json_with_etag(request, entry.document(), entry.etag, {"X-Springtide-Version": str(number)})
