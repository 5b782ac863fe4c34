"""The trainer's status file as this server reads it: its state is corrected if the trainer stopped writing."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import msgspec

STATUS_NAME = re.compile(r"status-(\d{10})\.json")
HEARTBEAT_TIMEOUT_MS = 5_000


class TrainerStatusReader:
    """The newest status file of a log, decoded again only after it was replaced. Any thread may read."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._seen: tuple[str, int, int] | None = None
        self._status: dict[str, Any] = {}

    def read(self, *, now_ms: int) -> dict[str, Any]:
        """The status as the trainer wrote it; a trainer without a recent heartbeat is `failed`, or `stopped`."""
        with self._lock:
            self._refresh()
            status = dict(self._status)
        if not status:
            return {"trainer": "stopped", "reason": "no trainer has written a status to this log yet"}
        age_ms = now_ms - int(status.get("updated_ms") or 0)
        if status.get("clean_end"):
            status["trainer"] = "stopped"
            status["reason"] = status.get("reason") or "the trainer shut down cleanly"
            status["samples_per_second"] = 0.0
        elif age_ms > HEARTBEAT_TIMEOUT_MS:
            last_reason = status.get("reason")
            status["trainer"] = "failed"
            status["reason"] = f"no heartbeat for {age_ms / 1000:.0f} s" + (
                f"; its last reported reason: {last_reason}" if last_reason else ""
            )
            status["samples_per_second"] = 0.0
        return status

    def gate(self, *, now_ms: int) -> dict[str, Any]:
        """What the trainer reports of its health gate; {} if it has none."""
        gate = self.read(now_ms=now_ms).get("gate")
        return gate if isinstance(gate, dict) else {}

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
            return  # it was just being replaced or removed: the last good one counts until the next read
        if isinstance(status, dict):
            self._seen, self._status = seen, status
