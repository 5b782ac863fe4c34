"""Freshness: the time from a record's Kafka timestamp until its version is servable.

While the trainer is caught up this is the delay of the pipeline. Records that waited for the trainer to start, or to
catch up, measure how long it was stopped, so they are counted apart. Each version says which they are.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

Phase = Literal["caught_up", "catching_up"]


class FreshnessMeter:
    """Observes versions in order. One thread observes, any thread asks."""

    def __init__(self) -> None:
        self.caught_up = Freshness()
        self.catching_up = CatchUp()

    def observe(self, record_ms: Sequence[int], *, catching_up: bool, servable_ms: int, is_live: bool = True) -> Phase:
        """Add sampled records of a version, and return where they count.

        `catching_up`: as the version says. `is_live`: False if the version is older than this server; then its records
        are not counted.
        """
        if is_live and catching_up:
            self.catching_up.observe(record_ms, servable_ms=servable_ms)
        elif is_live:
            self.catching_up.end(servable_ms)
            self.caught_up.observe(record_ms, servable_ms=servable_ms)
        return "catching_up" if catching_up else "caught_up"


class Freshness:
    """Ages in ms of sampled records at the moment their version became servable, over a recent window."""

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
        return _percentiles(ages)


class CatchUp:
    """The newest time in which the trainer caught up: how long it took, and the ages of its records."""

    def __init__(self, *, max_samples: int = 65_536) -> None:
        self._lock = threading.Lock()
        self._ages: deque[int] = deque(maxlen=max_samples)
        self._first_ms = self._last_ms = 0  # when its first and its newest version became servable
        self._ended_ms: int | None = None

    def observe(self, record_ms: Sequence[int], *, servable_ms: int) -> None:
        """Add records of a version that was written while the trainer was behind."""
        with self._lock:
            if self._ended_ms is not None or not self._first_ms:
                self._ages.clear()
                self._first_ms, self._ended_ms = servable_ms, None
            self._last_ms = servable_ms
            self._ages.extend(max(0, servable_ms - timestamp_ms) for timestamp_ms in record_ms)

    def end(self, servable_ms: int) -> None:
        """Note a version that was written while caught up."""
        with self._lock:
            if self._first_ms and self._ended_ms is None:
                self._ended_ms = servable_ms

    def document(self) -> dict[str, Any] | None:
        """`{"p50", "p99"}` in ms, its `seconds`, and `ended_ms`, None while it goes on; None if there was none."""
        with self._lock:
            ages, ended_ms = sorted(self._ages), self._ended_ms
            seconds = ((ended_ms or self._last_ms) - self._first_ms) / 1000
        found = _percentiles(ages)
        return None if found is None else {**found, "seconds": seconds, "ended_ms": ended_ms}


def _percentiles(ordered: Sequence[int]) -> dict[str, float] | None:
    if not ordered:
        return None
    return {"p50": float(_percentile(ordered, 0.50)), "p99": float(_percentile(ordered, 0.99))}


def _percentile(ordered: Sequence[int], fraction: float) -> int:
    return ordered[min(len(ordered) - 1, max(0, -(-int(fraction * 100) * len(ordered) // 100) - 1))]
