"""Limits how many things are sent per second. Knows nothing of what is sent."""

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Keeps a mean rate: after a delay the sender catches up. Without a rate it never waits."""

    def __init__(self, rate: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate` is per second; None for no limit."""
        self._rate = rate
        self._clock = clock
        self._began = clock()

    def seconds_until(self, num: int) -> float:
        """Return how long it is until the num-th may be sent; negative if that time has passed."""
        return 0.0 if self._rate is None else self._began + num / self._rate - self._clock()

    def wait(self, num: int, stopping: threading.Event) -> None:
        """Wait until the num-th may be sent, or until `stopping` is set."""
        if (seconds := self.seconds_until(num)) > 0:
            stopping.wait(seconds)

    def skip(self, seconds: float) -> None:
        """Do not catch up what was not sent in this many seconds."""
        self._began += seconds
