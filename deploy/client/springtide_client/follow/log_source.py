"""A log as followers read it, over any transport: LogDirectory and HttpLog are sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from springtide_client.format.records import Head, Record


class RecordCursor(Protocol):
    """A position in a log that `read` advances."""

    def read(self) -> Sequence[Record]:
        """Return some of the records that follow, none at the current end. GapError, CorruptRecordError, LogError."""

    def close(self) -> None: ...


class LogSource(Protocol):
    """Where bases and records come from. Methods raise LogError or OSError when the log cannot be read."""

    def newest_base(self) -> Path | None:
        """Return the folder of the newest base, complete and local, or None before the first."""

    def bases_before(self, than: Path) -> list[Path]:
        """Return the bases older than this one, newest first: for when it is corrupt."""

    def local_base(self) -> Path | None:
        """Return the newest base that is local now, without waiting. A later call may return a newer one."""

    def follow(self, after: Head | None) -> RecordCursor:
        """Return a cursor behind a version."""
