"""A log as followers read it, over any transport: LogDirectory and HttpLog are sources."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from springtide_client.format.records import Record, Tip


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

    def follow(self, after: Tip | None) -> RecordCursor:
        """Return a cursor behind a version."""


class OpenCursors:
    """Cursors that stay open, at most one behind each version. Not thread-safe."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._cursors: dict[Tip, RecordCursor] = {}

    def records(self, after: Tip) -> Iterator[Record]:
        """Yield the records after a version up to the current end. Leaving before the end closes the cursor."""
        cursor = self._cursors.pop(after, None) or self._source.follow(after)
        is_at_end = False
        try:
            while records := cursor.read():
                for record in records:
                    after = record.tip
                    yield record
            is_at_end = True
        finally:
            if is_at_end:
                # a rebuilt view ends behind the same version as the served one: one cursor is enough for both
                if (other := self._cursors.get(after)) is not None:
                    other.close()
                self._cursors[after] = cursor
            else:
                cursor.close()

    def keep_only(self, tip: Tip) -> None:
        """Close all cursors but the one behind this version."""
        for other in [other for other in self._cursors if other != tip]:
            self._cursors.pop(other).close()

    def close(self) -> None:
        """Close all cursors."""
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()
