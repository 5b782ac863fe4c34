"""A log as followers read it, whatever carries it: `LogDirectory` and `HttpLog` are sources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from springtide_client.format.records import Record, Tip


class RecordCursor(Protocol):
    """A place in a log that moves."""

    def read(self) -> Sequence[Record]:
        """Some of the records that follow, none at the current end; GapError, CorruptRecordError."""

    def close(self) -> None: ...


class LogSource(Protocol):
    """Where bases and records come from."""

    def newest_base(self) -> Path | None:
        """The folder of the newest base, complete, or None before the first."""

    def bases_before(self, than: Path) -> list[Path]:
        """What there is before a base, newest first, should that one be damaged."""

    def local_base(self) -> Path | None:
        """The newest base that can be had at once. Asking again may give a newer one."""

    def follow(self, after: Tip | None) -> RecordCursor:
        """A cursor behind a version."""
