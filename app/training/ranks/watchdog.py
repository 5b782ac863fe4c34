"""Ends a rank that cannot reach the store: over a cut link, or to a frozen process, a call may never return."""

import os
import sys
import threading
import time
from collections.abc import Callable

LOOKS = 16  # within the seconds of silence that mean death


class Watchdog(threading.Thread):
    """Ends this process once the store has not answered for too long; the log takes that as a kill.

    Time is counted in looks at the clock: while this process stands still, for which the store can do nothing, it looks
    no more.
    """

    def __init__(self, answered_at: Callable[[], float], seconds: float) -> None:
        """answered_at: when the store last answered this process, in seconds of the monotonic clock."""
        super().__init__(name="watchdog", daemon=True)
        self._answered_at, self._seconds = answered_at, seconds
        self._deadline, self._reason = float("inf"), f"the other ranks cannot be reached for {seconds:g} s"
        self._over = threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        num_looks, answered_at = 0, self._answered_at()
        while not self._over.wait(self._seconds / LOOKS):
            num_looks, before, answered_at = num_looks + 1, answered_at, self._answered_at()
            if answered_at != before:
                num_looks = 0
            if num_looks >= LOOKS or time.monotonic() > self._deadline:
                print(f"springtide: {self._reason}", file=sys.stderr, flush=True)
                os._exit(1)

    def end_within(self, seconds: float, reason: str) -> None:
        """Let the process end by itself, but not for longer than this."""
        self._reason, self._deadline = reason, time.monotonic() + seconds

    def stop(self) -> None:
        """The ranks have parted: the store is not needed any more."""
        self._over.set()
