"""The status document: what a trainer says of itself, every second, in the JSON of /v1/status."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from springtide_client.system.clock import wall_ms

from app.version_log.trainer_status import write_status
from stream.positions import Partition, Position

INTERVAL_SECONDS = 1.0
# a wall time further back than this is no longer "at the end of the stream"
CATCHING_UP_MS = 3000

logger = logging.getLogger(__name__)


def position_status(
    learned: Mapping[Partition, Position], committed: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> dict[str, dict[str, int | None]]:
    """By partition: learned, committed (durable), end, and the lag between the first and the last."""
    lines = {}
    for partition in sorted({*learned, *ends}):
        offset = learned[partition].offset if partition in learned else 0
        end = ends.get(partition)
        lines[str(partition)] = {
            "learned": offset,
            "committed": committed.get(partition, 0),
            "end": end,
            "lag": None if end is None else max(0, end - offset),
        }
    return lines


class StatusWriter:
    """Writes the newest document every second from a thread of its own: a long step is no silence.

    Nor is a slow disk a long step: whoever speaks writes nothing but the first word and the last.
    """

    def __init__(self, log_path: Path, epoch: int, hitch: Callable[[], Mapping[str, Any]] = dict) -> None:
        """`hitch`: what holds the newest document's speaker up by now; it goes over the document, from that thread."""
        self._log_path, self._epoch, self._hitch = log_path, epoch, hitch
        self.document: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._told = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._keep, name="status", daemon=True)

    def update(self, document: dict[str, Any]) -> None:
        """It is written now, and again until the next one."""
        self.document = document
        if self._thread.is_alive():
            self._told.set()
        else:
            self._write()
            if not self._stopping:
                self._thread.start()

    def set_epoch(self, epoch: int) -> None:
        """The same trainer goes on under another epoch."""
        with self._lock:
            self._epoch = epoch

    def close(self, document: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The last word; returns it."""
        self._stopping = True
        self._told.set()
        if self._thread.is_alive():
            self._thread.join()
        self.document = document() | {"updated_ms": wall_ms()}
        self._write()
        return self.document

    def _keep(self) -> None:
        while True:
            is_news = self._told.wait(INTERVAL_SECONDS)
            if self._stopping:
                return
            self._told.clear()
            self._write({} if is_news else self._hitch())

    def _write(self, over: Mapping[str, Any] | None = None) -> None:
        with self._lock:
            try:
                write_status(self._log_path, self._epoch, {**self.document, "updated_ms": wall_ms(), **(over or {})})
            except OSError as error:
                # a full disk must not end the learning: the log itself waits for room
                logger.warning("the status cannot be written", extra={"reason": str(error)})
