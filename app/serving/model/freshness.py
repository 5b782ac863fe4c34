"""Freshness: the time from a record's Kafka timestamp until its version is servable, over a recent window."""

import threading
from collections import deque
from collections.abc import Sequence


class Freshness:
    """Ages in ms of sampled records at the moment their version became servable.

    Versions applied while catching up must not be observed: the age of their records shows when the server started,
    not how fast it follows.
    """

    def __init__(self, *, window_ms: int = 60_000, max_samples: int = 65_536) -> None:
        self._window_ms = window_ms
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, int]] = deque(maxlen=max_samples)

    def observe(self, record_ms: Sequence[int], *, servable_ms: int) -> None:
        """Add the timestamps of records whose version became servable at `servable_ms`."""
        with self._lock:
            for timestamp_ms in record_ms:
                self._samples.append((servable_ms, max(0, servable_ms - timestamp_ms)))

    def percentiles(self, *, now_ms: int) -> dict[str, float] | None:
        """`{"p50", "p99"}` in ms (nearest rank), or None if the window has no sample."""
        with self._lock:
            while self._samples and self._samples[0][0] < now_ms - self._window_ms:
                self._samples.popleft()
            ages = sorted(age for _, age in self._samples)
        if not ages:
            return None
        return {"p50": float(_percentile(ages, 0.50)), "p99": float(_percentile(ages, 0.99))}


def _percentile(ordered: list[int], fraction: float) -> int:
    return ordered[min(len(ordered) - 1, max(0, -(-int(fraction * 100) * len(ordered) // 100) - 1))]
