"""Samples per second of the last moments."""

import time
from collections import deque
from collections.abc import Callable

SPAN_SECONDS = 5.0


class ThroughputMeter:
    """Measures how fast a count grows, over the last five seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: deque[tuple[float, int]] = deque()

    def record(self, count: int) -> None:
        """Note the count as of now."""
        now = self._clock()
        self._records.append((now, count))
        while len(self._records) > 2 and self._records[1][0] <= now - SPAN_SECONDS:
            self._records.popleft()

    def per_second(self) -> float:
        """Return the rate; 0 before the second record."""
        if len(self._records) < 2:
            return 0.0
        (first, before), (last, after) = self._records[0], self._records[-1]
        return (after - before) / (last - first) if last > first else 0.0
