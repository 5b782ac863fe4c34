"""Ends a rank that cannot reach the store: over a cut link, or to a frozen process, a call may never return."""

import os
import sys
import threading
import time
from collections.abc import Callable


class Watchdog(threading.Thread):
    """Ends this process once the store has not answered for twice the timeout; the log takes that as a kill."""

    def __init__(self, answered_at: Callable[[], float], timeout_seconds: float) -> None:
        """answered_at: when the store last answered this process, in seconds of the monotonic clock."""
        super().__init__(name="watchdog", daemon=True)
        self._answered_at, self._seconds = answered_at, 2 * timeout_seconds  # one for a tidy end
        self._over = threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        while not self._over.wait(self._seconds / 10):
            if time.monotonic() - self._answered_at() > self._seconds:
                print(
                    f"springtide: the other ranks cannot be reached for {self._seconds:g} s",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)

    def stop(self) -> None:
        """The ranks have parted: the store is not needed any more."""
        self._over.set()
