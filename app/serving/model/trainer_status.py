"""The trainer's status file as this server reads it: its state is corrected if the trainer stopped writing."""

import threading
from pathlib import Path

import msgspec

from springtide.app.version_log.trainer_status import TrainerStatus, newest_status_path

HEARTBEAT_TIMEOUT_MS = 5_000


class TrainerStatusReader:
    """The newest status file of a log, decoded again only after it was replaced. Any thread may read."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._seen: tuple[str, int, int] | None = None
        self._status: TrainerStatus | None = None

    def read(self, *, now_ms: int) -> TrainerStatus:
        """The status as the trainer wrote it; a trainer without a recent heartbeat is `failed`, or `stopped`."""
        with self._lock:
            self._refresh()
            status = self._status
        if status is None:
            return TrainerStatus(reason="no trainer has written a status to this log yet")
        age_ms = now_ms - status.updated_ms
        if status.clean_shutdown:
            reason = status.reason or "the trainer shut down cleanly"
            return msgspec.structs.replace(status, trainer="stopped", reason=reason, samples_per_second=0.0)
        if age_ms > HEARTBEAT_TIMEOUT_MS:
            reason = f"no heartbeat for {age_ms / 1000:.0f} s"
            reason += f"; its last reported reason: {status.reason}" if status.reason else ""
            return msgspec.structs.replace(status, trainer="failed", reason=reason, samples_per_second=0.0)
        return status

    def _refresh(self) -> None:
        try:
            path = newest_status_path(self._log_path)
            if path is None:
                return
            stat = path.stat()
            seen = (path.name, stat.st_mtime_ns, stat.st_ino)
            if seen != self._seen:
                self._status = TrainerStatus.decode(path.read_bytes())
                self._seen = seen
        except (OSError, msgspec.DecodeError):
            return  # it was just being replaced or removed: the last good one counts until the next read
