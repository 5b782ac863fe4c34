"""Operation: status, liveness, readiness, metrics, and the event stream."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Query, Request
from springtide_client.system.clock import wall_ms
from starlette.responses import Response

from app.serving.http.request_limits import RequestLimits
from app.serving.http.responses import JsonResponse, StreamResponse
from app.serving.model.replica import Replica
from app.serving.model.trainer_status import TrainerStatusReader
from app.serving.ops.scrape import MetricsScraper
from app.serving.ops.status import StatusReporter
from app.serving.ops.status_history import StatusHistory
from app.version_log.trainer_status import GateStatus

router = APIRouter(tags=["Operation"])

PING_SECONDS = 15.0
STATUS_POLL_SECONDS = 1.0


class OpsParts(NamedTuple):
    """What the routes of this module use."""

    replica: Replica
    trainer: TrainerStatusReader
    status: StatusReporter
    history: StatusHistory
    scraper: MetricsScraper
    limits: RequestLimits


@router.get("/v1/status")
async def status(request: Request, history: Annotated[bool, Query()] = False) -> JsonResponse:
    """The trainer's state and the server's measurements

    history=1 adds one small sample for each second of the last quarter of an hour.
    """
    parts: OpsParts = request.app.state.ops
    document = await asyncio.to_thread(parts.status.document)
    if history:
        document["history"] = parts.history.samples()
    return JsonResponse(document, headers={"Cache-Control": "no-store"})


@router.get("/healthz")
async def alive() -> JsonResponse:
    """Liveness: 200 while the process answers"""
    return JsonResponse({"status": "ok"})


@router.get("/readyz")
async def ready(request: Request) -> JsonResponse:
    """Readiness: 200 once a version is served, before that 503 with the reason"""
    parts: OpsParts = request.app.state.ops
    return JsonResponse({"status": "ready", "version": parts.replica.require_view().version})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics as Prometheus text"""
    parts: OpsParts = request.app.state.ops
    text = await asyncio.to_thread(parts.scraper.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/events")
async def events(request: Request) -> StreamResponse:
    """Server-sent events: each version that becomes servable, its scores, and changes of the health gate"""
    parts: OpsParts = request.app.state.ops
    parts.limits.open_stream()
    return StreamResponse(_events(parts), "text/event-stream", parts.limits.close_stream)


async def _events(parts: OpsParts) -> AsyncIterator[bytes]:
    replica = parts.replica
    sent_version = -1
    sent_at = time.monotonic()
    gate = await asyncio.to_thread(_gate, parts)
    yield b"retry: 1000\n\n"
    while not replica.stopping:
        view = replica.view
        if view is not None and view.version != sent_version:
            sent_version = view.version
            entry = replica.versions.find(sent_version)
            document: dict[str, Any] = {"version": sent_version} if entry is None else entry.document()
            yield _event("version", sent_version, document)
            if document.get("scores"):
                yield _event("scores", sent_version, {"version": sent_version, **document["scores"]})
            sent_at = time.monotonic()
        elif (now := await asyncio.to_thread(_gate, parts)) != gate:
            gate = now
            yield _event("gate", sent_version, now)
            sent_at = time.monotonic()
        elif time.monotonic() - sent_at >= PING_SECONDS:
            yield b": ping\n\n"
            sent_at = time.monotonic()
        await replica.wait_for_change(STATUS_POLL_SECONDS)


def _gate(parts: OpsParts) -> GateStatus:
    return parts.trainer.gate(now_ms=wall_ms())


def _event(name: str, version: int, document: object) -> bytes:
    return f"event: {name}\nid: {version}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"
