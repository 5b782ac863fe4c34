"""The stream of server-sent events: new versions, their scores, and changes of the health gate and of drift."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.trainer_status import TrainerStatusReader
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
            document: dict[str, Any] = {"version": sent_version} if entry is None else entry.document()
            yield _event("version", sent_version, document)
            if document.get("scores"):
                yield _event("scores", sent_version, {"version": sent_version, **document["scores"]})
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
