"""One client's position in the log; a thread may still be reading when the client has disconnected."""

import threading

from springtide_client.format.records import Record, Tip
from springtide_client.log.directory import LogDirectory


class LogReader:
    """Reads records after a version. `close` may be called during a read: the reading thread then closes the file."""

    def __init__(self, directory: LogDirectory, start: Tip) -> None:
        self.start = start
        self._directory = directory
        self._cursor = directory.follow(start)
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, tip: Tip, limit_bytes: int) -> list[Record]:
        """Read about `limit_bytes` of the records after `tip`; raises LogError as LogCursor.read does."""
        try:
            with self._lock:
                if self._is_closed:
                    return []
                if self._cursor.tip != tip:  # it fell behind while the client was sent cached records
                    self._cursor.close()
                    self._cursor = self._directory.follow(tip)
                return self._cursor.read(limit_bytes)
        finally:
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """Close the file, at once or at the end of the read in progress; never blocks."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._cursor.close()
            finally:
                self._lock.release()
