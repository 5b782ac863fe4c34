"""Cursors over a log that stay open between polls, each behind the version that it returned last."""

from collections.abc import Iterator

from springtide_client.follow.log_source import LogSource, RecordCursor
from springtide_client.format.records import Record, Tip


class OpenCursors:
    """At most one cursor behind each version. Not thread-safe."""

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
