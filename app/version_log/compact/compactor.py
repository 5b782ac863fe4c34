"""Follow a log at the lowest priority, write its next base when one is due, and delete what it covers."""

import logging
import threading
import time
from pathlib import Path

from springtide.app.models.export.onnx_export import is_possible
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.onnx import OnnxBuilder
from springtide.app.version_log.compact.pending_versions import PendingVersions
from springtide.app.version_log.compact.pinned_base import pinned_base_due, write_pinned_base
from springtide.app.version_log.compact.retention import apply_retention, complete_bases, remove_drafts
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.disk_budget import DiskBudget, LogUsage
from springtide.app.version_log.retention.pins import pin_names
from springtide_client.errors import LogError
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_number
from springtide_client.system.file_lock import file_lock

LOCK_NAME = "compactor.lock"
POLL_SECONDS = 1.0
SEGMENT_BYTES = 1 << 30  # more than this, and than one base, is compacted before base_minutes have passed
FULL_SECONDS = 5.0  # while the trainer waits for room, a base is made this often of whatever is there
IDLE_BYTES = 16 << 20  # of heartbeats alone: then the newest base is linked under the newest number
WINDOW_SAMPLES = 20_000

logger = logging.getLogger(__name__)


class Compactor:
    """Writes the next base when one is due. If several run on one machine, one works and the others wait."""

    def __init__(self, config: LogConfig, *, window_samples: int = WINDOW_SAMPLES) -> None:
        self.config = config
        self.directory = LogDirectory(config.path)
        self.budget = DiskBudget(config.log_bytes)
        self._window_samples = window_samples
        self._onnx = OnnxBuilder() if config.onnx and is_possible() else None
        self._pending = PendingVersions(self.directory)
        self._tried_at = 0.0
        self._tried_after = 0
        self._pins: list[str] | None = None  # at the last retention

    def is_due(self) -> bool:
        """Return True if there is something to compact, and enough time has passed or enough bytes have come.

        Heartbeats alone make no base until there are so many that followers would be slow to read them.
        """
        bases = complete_bases(self.directory)
        if not bases:
            return False
        manifest = read_base_manifest(bases[-1])
        pending_bytes, is_idle = self._pending.after(manifest.number)
        if not pending_bytes or time.time() - self._tried_at < POLL_SECONDS:
            return False
        started = manifest.created_ms / 1000
        if self._tried_after == manifest.number:  # the last attempt found nothing durable
            started = max(started, self._tried_at)
        if is_idle and self.budget.free_bytes(LogUsage.of(self.config.path)) >= 0:
            return pending_bytes > min(IDLE_BYTES, self.budget.max_version_bytes)
        if time.time() - started >= self.config.base_minutes * 60:
            return True
        base_bytes = sum(file.bytes for file in manifest.files.values())
        if pending_bytes > max(SEGMENT_BYTES, base_bytes):
            return True
        usage = LogUsage.of(self.config.path)
        if self.budget.free_bytes(usage) < 0:  # the trainer waits for it
            return time.time() - started >= FULL_SECONDS or pending_bytes > self.budget.max_version_bytes
        # with little space left a base is due sooner, but it must free something, or it would only take more
        return self.budget.is_short(usage) and pending_bytes > self.budget.max_version_bytes

    def compact(self) -> Path | None:
        """Write the next base now and apply retention; None if no newer version is durable."""
        bases = self.directory.bases()
        self._tried_at, self._tried_after = time.time(), base_number(bases[-1]) if bases else 0
        if self.budget.is_short(LogUsage.of(self.config.path)):
            self.apply_retention()  # the oldest bases by rule go first
        if self.budget.is_short(LogUsage.of(self.config.path)):  # makes room for the next one
            apply_retention(self.directory, 1, rule=self.config.keep_rule, log_bytes=self.config.log_bytes)
        path = compact_log(
            self.directory,
            window_samples=self._window_samples,
            onnx=self._onnx,
            base_files=self.config.base_files,
        )
        if path is not None:
            logger.info("base written", extra={"base": path.name})
        self.apply_retention()
        return path

    def apply_retention(self) -> None:
        """Delete what is kept no longer; first write a base of a pinned version where that frees more than it takes."""
        config, self._pins = self.config, pin_names(self.config.path)
        while self._pins and (due := pinned_base_due(self.directory, keep_bases=config.keep_bases)) is not None:
            write_pinned_base(
                self.directory,
                due,
                window_samples=self._window_samples,
                onnx=self._onnx,
                base_files=config.base_files,
            )
        num_bases = self.budget.num_bases(LogUsage.of(config.path), config.keep_bases)
        apply_retention(self.directory, num_bases, rule=config.keep_rule, log_bytes=config.log_bytes)

    def run(self, stopping: threading.Event) -> None:
        """Compact whenever it is due, until `stopping` is set. Waits first while another compactor has the lock."""
        lock_path = self.config.path / LOCK_NAME
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(lock_path, lambda: stopping.wait(POLL_SECONDS)) as is_held:
            if is_held:
                remove_drafts(self.directory)
            while not stopping.wait(POLL_SECONDS):
                try:
                    while self.is_due() and self.compact() and not stopping.is_set():
                        pass
                    if self._pins != pin_names(self.config.path):  # at the start too: the configuration may be new
                        self.apply_retention()
                except (LogError, OSError) as error:
                    # retried at the next poll; a full disk may have room by then
                    logger.warning("no base could be written", extra={"reason": str(error)})
