"""What the trainer says of itself and what this server measures, joined: the JSON of /v1/status."""

import os
import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from springtide_client.system.clock import wall_ms

STATUS_NAME = re.compile(r"status-(\d{10})\.json")
HEARTBEAT_TIMEOUT_MS = 5_000
HISTORY_LENGTH = 900


class TrainerStatusReader:
    """The newest status file of a log, read again only when it was replaced."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._seen: tuple[str, int, int] | None = None
        self._status: dict[str, Any] = {}

    def read(self, *, now_ms: int) -> dict[str, Any]:
        """The trainer's own words, its state corrected where it fell silent."""
        with self._lock:
            self._refresh()
            status = dict(self._status)
        if not status:
            reason = "no trainer has written a status to this log yet"
            return {"trainer": "stopped", "reason": reason}
        age_ms = now_ms - int(status.get("updated_ms") or 0)
        if status.get("clean_end"):
            status["trainer"] = "stopped"
            status["reason"] = status.get("reason") or "the trainer ended cleanly"
            status["samples_per_second"] = 0.0
        elif age_ms > HEARTBEAT_TIMEOUT_MS:
            said = status.get("reason")
            status["trainer"] = "failed"
            status["reason"] = f"no sign of life for {age_ms / 1000:.0f} s" + (
                f"; it last said: {said}" if said else ""
            )
            status["samples_per_second"] = 0.0
        return status

    def _refresh(self) -> None:
        try:
            names = [name for name in os.listdir(self._log_path) if STATUS_NAME.fullmatch(name)]
            if not names:
                return
            path = self._log_path / max(names)
            stat = path.stat()
            seen = (path.name, stat.st_mtime_ns, stat.st_ino)
            if seen == self._seen:
                return
            status = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return  # replaced or removed under our hands: the last good one stands until the next look
        if isinstance(status, dict):
            self._seen, self._status = seen, status


class StatusHistory:
    """A ring of small status samples, one a second, so that a reloaded dashboard shows the past."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._samples: deque[dict[str, Any]] = deque(maxlen=HISTORY_LENGTH)

    def sample(self) -> None:
        """Keep what the status says now."""
        self._samples.append(summarize(self._read()))

    def samples(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return list(self._samples)


def summarize(status: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a status that the dashboard draws over time."""
    scores = status.get("scores") or {}
    window, whole = scores.get("window") or {}, scores.get("whole") or {}
    freshness = status.get("freshness_ms") or {}
    table = status.get("table") or {}
    positions = status.get("positions") or {}
    lags = [position.get("lag") for position in positions.values() if isinstance(position, dict)]
    return {
        "at_ms": wall_ms(),
        "auc_window": window.get("auc"),
        "auc_whole": whole.get("auc"),
        "samples_per_second": status.get("samples_per_second"),
        "lag": sum(lag for lag in lags if lag is not None) if lags else None,
        "freshness_p50": freshness.get("p50"),
        "freshness_p99": freshness.get("p99"),
        "staleness_ms": status.get("staleness_ms"),
        "rows": table.get("rows"),
        "version": status.get("version"),
    }
