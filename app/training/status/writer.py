"""Writes the status file every second from a thread of its own, so that a long step does not look like a dead trainer.

`update` does not write to the disk, except for the first status, so a slow disk cannot stall a step.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from springtide.app.version_log.trainer_status import TrainerStatus, sign_status, write_status

INTERVAL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class StatusWriter:
    """Keeps one epoch's status file up to date; the file's age is the trainer's heartbeat."""

    def __init__(self, log_path: Path, epoch: int, *, writes: bool = True) -> None:
        """`writes`: False on a rank above 0, whose status is part of rank 0's."""
        self.stall_reason: Callable[[], str] = str  # called from the thread while the trainer is silent; "": no stall
        self.status = TrainerStatus()
        self._log_path, self._epoch, self._writes = log_path, epoch, writes
        self._lock = threading.Lock()
        self._updated = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def update(self, status: TrainerStatus) -> None:
        """Write this status now, and again every second until the next one."""
        self.status = status
        if not self._writes:
            return
        if self._thread.is_alive():
            self._updated.set()
        else:
            self._write(status)
            if not self._stopping:
                self._thread.start()

    def announce(self, reason: str) -> None:
        """Update the reason alone: what the trainer is about to do takes a while."""
        self.update(msgspec.structs.replace(self.status, reason=reason))

    def set_epoch(self, epoch: int) -> None:
        """Continue in the file of another epoch."""
        with self._lock:
            self._epoch = epoch

    def close(self, status: TrainerStatus) -> TrainerStatus:
        """Stop the thread, write the last status, and return it as written."""
        self._stopping = True
        self._updated.set()
        if self._thread.is_alive():
            self._thread.join()
        self.status = self._write(status)
        return self.status

    def fail(self, error: BaseException) -> None:
        """Write the last status of a trainer that cannot continue."""
        reason = " ".join(str(error).split()) or type(error).__name__
        self.close(msgspec.structs.replace(self.status, trainer="failed", reason=reason, samples_per_second=0.0))

    def _run(self) -> None:
        while True:
            is_updated = self._updated.wait(INTERVAL_SECONDS)
            if self._stopping:
                return
            self._updated.clear()
            status = self.status
            if not is_updated and (reason := self.stall_reason()):
                status = msgspec.structs.replace(status, trainer="waiting", reason=reason)
            self._write(status)

    def _write(self, status: TrainerStatus) -> TrainerStatus:
        with self._lock:
            signed = sign_status(status, self._epoch)
            if not self._writes:
                return signed
            try:
                write_status(self._log_path, self._epoch, signed)
            except OSError as error:
                # a full disk must not end the learning: the log itself waits for room
                logger.warning("the status cannot be written", extra={"reason": str(error)})
            return signed
