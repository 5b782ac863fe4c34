"""How long a record takes from Kafka until a prediction knows it, over the versions of a recent window."""

import threading
from collections import deque
from collections.abc import Sequence


class Freshness:
    """Ages in ms of sampled records at the moment their version became servable.

    Versions applied while catching up are not counted: their records' age says when the server came, not how fast
    it follows.
    """

    def __init__(self, *, window_ms: int = 60_000, max_samples: int = 65_536) -> None:
        self._window_ms = window_ms
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, int]] = deque(maxlen=max_samples)

    def observe(self, record_ms: Sequence[int], *, servable_ms: int) -> None:
        """A version is servable now; these are the timestamps of records it learned."""
        with self._lock:
            for timestamp_ms in record_ms:
                self._samples.append((servable_ms, max(0, servable_ms - timestamp_ms)))

    def percentiles(self, *, now_ms: int) -> dict[str, float] | None:
        """`{"p50", "p99"}` in ms (nearest rank), or None where the window holds no sample."""
        with self._lock:
            while self._samples and self._samples[0][0] < now_ms - self._window_ms:
                self._samples.popleft()
            ages = sorted(age for _, age in self._samples)
        if not ages:
            return None
        return {"p50": float(_rank(ages, 0.50)), "p99": float(_rank(ages, 0.99))}


def _rank(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 100) * len(ordered) // 100) - 1))]
