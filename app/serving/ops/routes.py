"""What runs and how well: status, liveness, readiness, metrics, events."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.serving.http.responses import JsonResponse, StreamResponse
from app.serving.service import Service

router = APIRouter(tags=["Operation"])

PING_SECONDS = 15.0
LOOK_SECONDS = 1.0  # at what the trainer says of itself


@router.get("/v1/status")
async def status(request: Request, history: Annotated[bool, Query()] = False) -> JsonResponse:
    """The trainer's state and the server's measurements

    history=1 adds one small sample a second of the last quarter of an hour.
    """
    service: Service = request.app.state.service
    document = await asyncio.to_thread(service.status)
    if history:
        document["history"] = service.history.samples()
    return JsonResponse(document, headers={"Cache-Control": "no-store"})


@router.get("/healthz")
async def alive() -> JsonResponse:
    """Whether the process lives"""
    return JsonResponse({"status": "ok"})


@router.get("/readyz")
async def ready(request: Request) -> JsonResponse:
    """Whether a version is served; 503 with the reason before"""
    service: Service = request.app.state.service
    return JsonResponse({"status": "ready", "version": service.replica.require_view().version})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text"""
    service: Service = request.app.state.service
    text = await asyncio.to_thread(service.scrape)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/events")
async def events(request: Request) -> StreamResponse:
    """Server-sent events: each version that becomes servable, with its scores, and what the health gate does"""
    service: Service = request.app.state.service
    service.open_stream()
    return StreamResponse(_events(service), "text/event-stream", service.close_stream)


async def _events(service: Service) -> AsyncIterator[bytes]:
    replica = service.replica
    sent = -1
    spoken = time.monotonic()
    gate = await asyncio.to_thread(service.gate)
    yield b"retry: 1000\n\n"
    while not replica.stopping:
        view = replica.view
        if view is not None and view.version != sent:
            sent = view.version
            entry = replica.versions.find(sent)
            document: dict[str, Any] = {"version": sent} if entry is None else entry.document()
            yield _event("version", sent, document)
            if document.get("scores"):
                yield _event("scores", sent, {"version": sent, **document["scores"]})
            spoken = time.monotonic()
        elif (now := await asyncio.to_thread(service.gate)) != gate:
            gate = now
            yield _event("gate", sent, now)
            spoken = time.monotonic()
        elif time.monotonic() - spoken >= PING_SECONDS:
            yield b": ping\n\n"
            spoken = time.monotonic()
        await replica.wait_for_change(LOOK_SECONDS)


def _event(name: str, version: int, document: dict[str, Any]) -> bytes:
    return f"event: {name}\nid: {version}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"
