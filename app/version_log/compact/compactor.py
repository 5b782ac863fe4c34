"""Follows the log at the lowest priority and makes its bases: `python -m app.version_log.compact.compactor LOG`."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.system.file_lock import file_lock

from app.models.export_onnx import is_possible
from app.processes.priority import yield_to_others
from app.processes.tuning import tune_process
from app.version_log.compact.merge import compact_log
from app.version_log.compact.onnx import OnnxBuilder
from app.version_log.compact.retention import apply_retention, base_number, complete_bases, remove_drafts
from app.version_log.config import LogConfig
from app.version_log.disk_usage import folder_bytes
from app.version_log.read.segments import scan_segment

POLL_SECONDS = 1.0
SEGMENT_BYTES = 1 << 30  # segments of more than this, and than one base, are merged before their time
WINDOW_SAMPLES = 20_000

logger = logging.getLogger(__name__)


class Compactor:
    """Makes the next base when one is due. Of several on one machine, one works and the others wait."""

    def __init__(self, config: LogConfig, *, window_samples: int = WINDOW_SAMPLES) -> None:
        self.config = config
        self.directory = LogDirectory(config.path)
        self._window_samples = window_samples
        self._onnx = OnnxBuilder() if config.onnx and is_possible() else None
        self._tried_at = 0.0
        self._tried_after = 0

    def is_due(self) -> bool:
        """Whether there is something to merge, and time or bytes ask for it."""
        bases = complete_bases(self.directory)
        if not bases:
            return False
        manifest = read_base_manifest(bases[-1])
        pending_bytes = self._pending_bytes(manifest.number)
        if not pending_bytes or time.time() - self._tried_at < POLL_SECONDS:
            return False
        started = manifest.created_ms / 1000
        if self._tried_after == manifest.number:  # nothing was durable enough the last time
            started = max(started, self._tried_at)
        if time.time() - started >= self.config.base_minutes * 60:
            return True
        base_bytes = sum(file.bytes for file in manifest.files.values())
        is_short = folder_bytes(self.config.path) > self.config.log_bytes // 2
        # when space is short a merge must still have something to free, or it would only write
        return pending_bytes > (self.config.log_bytes // 16 if is_short else max(SEGMENT_BYTES, base_bytes))

    def _pending_bytes(self, number: int) -> int:
        """The bytes of segments that a base does not cover."""
        listing = self.directory.scan()
        manifest = self.directory.manifest(listing)
        if manifest is None:
            return 0
        pending, is_covered = 0, True
        for name, limit in self.directory.readable_segments(listing, manifest):
            path, covered = self.config.path / name, 0
            for header, end in scan_segment(path, limit, verify_after=2**63) if is_covered else ():
                if header.number > number:
                    is_covered = False
                    break
                covered = end
            pending += (_size(path) if limit is None else limit) - covered
        return pending

    def compact(self) -> Path | None:
        """Make the next base now and retire what it covers; None where no newer version is durable."""
        bases = self.directory.bases()
        self._tried_at, self._tried_after = time.time(), base_number(bases[-1]) if bases else 0
        path = compact_log(self.directory, window_samples=self._window_samples, onnx=self._onnx)
        if path is not None:
            logger.info("base written", extra={"base": path.name})
        # over the cap the stream waits for room, and would wait for ever for a second base of nothing new
        is_full = folder_bytes(self.config.path) > self.config.log_bytes
        apply_retention(self.directory, 1 if is_full else self.config.keep_bases)
        return path

    def run(self, stopping: threading.Event) -> None:
        """Merge whenever it is due, until asked to stop."""
        lock_path = self.config.path / "compactor.lock"
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(lock_path, lambda: stopping.wait(POLL_SECONDS)) as is_held:
            if is_held:
                remove_drafts(self.directory)
            while not stopping.wait(POLL_SECONDS):
                try:
                    while self.is_due() and self.compact() and not stopping.is_set():
                        pass
                except (LogError, OSError) as error:
                    # it is tried again; a full disk may have room by then
                    logger.warning("no base could be made", extra={"reason": str(error)})


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def main(arguments: list[str] | None = None) -> int:
    """Merge until SIGTERM, or until the parent named by `--parent` is gone."""
    parser = argparse.ArgumentParser(prog="springtide-merger", description=main.__doc__)
    parser.add_argument("log", type=Path)
    for name, default in (("base_minutes", LogConfig.base_minutes), ("keep_bases", LogConfig.keep_bases)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--log-bytes", type=int, default=LogConfig.log_bytes)
    parser.add_argument("--window-samples", type=int, default=WINDOW_SAMPLES)
    parser.add_argument("--no-onnx", action="store_true", help="bases hold no model.onnx")
    parser.add_argument("--parent", type=int)
    parser.add_argument("--once", action="store_true", help="make one base now and end")
    options = parser.parse_args(arguments)
    config = LogConfig(
        path=options.log,
        base_minutes=options.base_minutes,
        keep_bases=options.keep_bases,
        onnx=not options.no_onnx,
        log_bytes=options.log_bytes,
    )
    merger = Compactor(config, window_samples=options.window_samples)
    if options.once:
        merger.compact()
        return 0
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if options.parent is not None:
        threading.Thread(target=_watch, args=(options.parent, stopping), daemon=True).start()
    merger.run(stopping)
    return 0


def _watch(parent: int, stopping: threading.Event) -> None:
    while os.getppid() == parent and not stopping.wait(POLL_SECONDS):
        pass
    stopping.set()


if __name__ == "__main__":
    tune_process()
    yield_to_others()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
