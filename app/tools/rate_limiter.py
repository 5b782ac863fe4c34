"""Keeps a sender to a rate. Knows nothing of what is sent."""

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Says how many may be sent by now; late starts are caught up, so the mean rate holds."""

    def __init__(self, rate: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._began = clock()

    def seconds_until(self, num: int) -> float:
        """How long until the num-th may be sent; negative when that was in the past."""
        return 0.0 if self._rate is None else self._began + num / self._rate - self._clock()

    def wait(self, num: int, stopping: threading.Event) -> None:
        """Wait until the num-th may be sent, or somebody wants to stop."""
        if (seconds := self.seconds_until(num)) > 0:
            stopping.wait(seconds)

    def skip(self, seconds: float) -> None:
        """Do not catch up what was missed in so many seconds."""
        self._began += seconds
