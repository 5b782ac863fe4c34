"""Samples per second of the last moments."""

import time
from collections import deque
from collections.abc import Callable

SPAN_SECONDS = 5.0


class ThroughputMeter:
    """How fast a count grows, over the last five seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()

    def record(self, count: int) -> None:
        """The count is this now."""
        now = self._clock()
        self._marks.append((now, count))
        while len(self._marks) > 2 and self._marks[1][0] <= now - SPAN_SECONDS:
            self._marks.popleft()

    def per_second(self) -> float:
        """0 before the second mark."""
        if len(self._marks) < 2:
            return 0.0
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first else 0.0
