"""Operation: status, liveness, readiness, metrics, and the stream of server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from springtide.app.serving.http.middleware import RequestLimits
from springtide.app.serving.http.responses import JsonResponse, StreamResponse
from springtide.app.serving.http.route import TEXT, Routes
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import Part
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide.app.serving.model.versions import VersionResponse
from springtide.app.serving.ops.status import ServerStatusReporter, StatusResponse
from springtide.app.version_log.trainer_status import DriftStatus, GateStatus
from springtide_client.system.clock import wall_ms

PING_SECONDS = 15.0
STATUS_POLL_SECONDS = 1.0


async def stream_events(replica: Replica, trainer: TrainerStatusReader) -> AsyncIterator[bytes]:
    """Events in the format of server-sent events: `version`, `scores`, `gate` and `drift`, until the server stops."""
    sent_version = -1
    sent_at = time.monotonic()
    gate, drift = await asyncio.to_thread(_gate_and_drift, trainer)
    yield b"retry: 1000\n\n"
    while not replica.stopping:
        view = replica.view
        if view is not None and view.version != sent_version:
            sent_version = view.version
            entry = replica.versions.find(sent_version)
            document = {"version": sent_version} if entry is None else VersionResponse.of(entry)
            yield _event("version", sent_version, document)
            if entry is not None and entry.meta.scores:
                yield _event("scores", sent_version, {"version": sent_version, **entry.meta.scores})
            sent_at = time.monotonic()
        elif (now := await asyncio.to_thread(_gate_and_drift, trainer)) != (gate, drift):
            if now[0] != gate:
                yield _event("gate", sent_version, now[0])
            if now[1] != drift:
                yield _event("drift", sent_version, now[1])
            gate, drift = now
            sent_at = time.monotonic()
        elif time.monotonic() - sent_at >= PING_SECONDS:
            yield b": ping\n\n"
            sent_at = time.monotonic()
        await replica.wait_for_change(STATUS_POLL_SECONDS)


def _gate_and_drift(trainer: TrainerStatusReader) -> tuple[GateStatus, dict[str, Any]]:
    """Return the gate, and of the drift what changes seldom: its level, and the feature that drifts most."""
    status = trainer.read(now_ms=wall_ms())
    drift = status.scores.drift or DriftStatus()
    return status.gate, {"level": drift.level, "most": drift.most if drift.level != "none" else None}


def _event(name: str, version: int, document: object) -> bytes:
    return f"event: {name}\nid: {version}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"


routes = Routes("Operation")


class AliveResponse(msgspec.Struct, forbid_unknown_fields=True):
    """`range`: the part of the rows that the server holds, if not all; None: no rows."""

    status: Literal["ok"]
    range: str | msgspec.UnsetType | None = msgspec.UNSET


class ReadyResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The served version; `range` as in AliveResponse."""

    version: int
    status: Literal["ready"]
    range: str | msgspec.UnsetType | None = msgspec.UNSET


@routes.add("GET", "/v1/status", scope="read", response=StatusResponse, errors=(422,), head=True)
async def status(request: Request, history: Annotated[bool, Query()] = False) -> JsonResponse:
    """The trainer's state and the server's measurements

    history=1 adds one small sample for each second of the last quarter of an hour.
    """
    state = request.app.state
    reporter: ServerStatusReporter = state.status
    found = await asyncio.to_thread(reporter.read)
    if history:
        found = msgspec.structs.replace(found, history=state.history.samples())
    return JsonResponse(found.to_json(), headers={"Cache-Control": "no-store"})


@routes.add("GET", "/healthz", scope="public", response=AliveResponse, head=True)
async def alive(request: Request) -> JsonResponse:
    """Liveness: 200 while the process answers"""
    return JsonResponse(AliveResponse("ok", _range(request.app.state.part)))


@routes.add("GET", "/readyz", scope="public", response=ReadyResponse, errors=(503,), head=True)
async def ready(request: Request) -> JsonResponse:
    """Readiness: 200 once a version is served, before that 503 with the reason"""
    replica: Replica = request.app.state.replica
    return JsonResponse(ReadyResponse(replica.require_view().version, "ready", _range(replica.part)))


@routes.add("GET", "/metrics", scope="read", response={"text/plain": TEXT}, head=True, throttled=False)
async def metrics(request: Request) -> Response:
    """Metrics as Prometheus text"""
    text = await asyncio.to_thread(request.app.state.scraper.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@routes.add("GET", "/v1/events", scope="read", response={"text/event-stream": TEXT}, errors=(503,), throttled=False)
async def events(request: Request) -> StreamResponse:
    """Server-sent events: each version that becomes servable, its scores, changes of the health gate and of drift"""
    state = request.app.state
    limits: RequestLimits = state.limits
    limits.open_stream()
    return StreamResponse(stream_events(state.replica, state.trainer), "text/event-stream", limits.close_stream)


def _range(part: Part) -> str | msgspec.UnsetType | None:
    """The range in a probe's answer, of a server that does not hold everything."""
    if part.holds_all:
        return msgspec.UNSET
    return None if part.hash_range.is_empty else str(part.hash_range)
