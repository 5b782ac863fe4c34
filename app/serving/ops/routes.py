"""Operation: status, liveness, readiness, metrics, events."""

import asyncio
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from springtide.app.serving.http.request_limits import RequestLimits
from springtide.app.serving.http.responses import JsonResponse, StreamResponse
from springtide.app.serving.model.part import Part
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide.app.serving.ops.event_stream import stream_events
from springtide.app.serving.ops.scrape import MetricsScraper
from springtide.app.serving.ops.status import ServerStatusReporter
from springtide.app.serving.ops.status_history import StatusHistory

router = APIRouter(tags=["Operation"])


class OpsParts(NamedTuple):
    """What the routes of this module use."""

    replica: Replica
    trainer: TrainerStatusReader
    status: ServerStatusReporter
    history: StatusHistory
    scraper: MetricsScraper
    limits: RequestLimits
    part: Part


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
async def alive(request: Request) -> JsonResponse:
    """Liveness: 200 while the process answers"""
    parts: OpsParts = request.app.state.ops
    return JsonResponse({"status": "ok", **_part(parts.part)})


@router.get("/readyz")
async def ready(request: Request) -> JsonResponse:
    """Readiness: 200 once a version is served, before that 503 with the reason"""
    parts: OpsParts = request.app.state.ops
    return JsonResponse({"status": "ready", "version": parts.replica.require_view().version, **_part(parts.part)})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Metrics as Prometheus text"""
    parts: OpsParts = request.app.state.ops
    text = await asyncio.to_thread(parts.scraper.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/events")
async def events(request: Request) -> StreamResponse:
    """Server-sent events: each version that becomes servable, its scores, changes of the health gate and of drift"""
    parts: OpsParts = request.app.state.ops
    parts.limits.open_stream()
    return StreamResponse(stream_events(parts.replica, parts.trainer), "text/event-stream", parts.limits.close_stream)


def _part(part: Part) -> dict[str, str | None]:
    """What probes tell of a server that does not hold everything."""
    if part.holds_all:
        return {}
    return {"range": None if part.hash_range.is_empty else str(part.hash_range)}
