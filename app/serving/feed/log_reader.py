"""The log behind one asker of /v1/log: read by a thread that may still be at it when the asker has left."""

import threading

from springtide_client.format.records import Record, Tip
from springtide_client.log.directory import LogDirectory


class LogReader:
    """Reads on from a version. `close` may come amid a read: then whoever reads closes the file."""

    def __init__(self, directory: LogDirectory, began: Tip) -> None:
        self.start = began
        self._directory = directory
        self._cursor = directory.follow(began)
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, tip: Tip, limit_bytes: int) -> list[Record]:
        """What follows a version, about `limit_bytes` of it; LogError as LogCursor.read."""
        try:
            with self._lock:
                if self._is_closed:
                    return []
                if self._cursor.tip != tip:  # it stayed behind while the asker was given recent records
                    self._cursor.close()
                    self._cursor = self._directory.follow(tip)
                return self._cursor.read(limit_bytes)
        finally:
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """Give the file back, at once or at the end of the read under way; never waits."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._cursor.close()
            finally:
                self._lock.release()
