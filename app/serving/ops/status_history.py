"""The past quarter of an hour of the status, one small sample a second: what a reloaded dashboard draws."""

from collections import deque
from typing import Any

from springtide_client.system.clock import wall_ms

MAX_SAMPLES = 900


class StatusHistory:
    """A ring of samples. One thread adds, any thread may read."""

    def __init__(self) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=MAX_SAMPLES)

    def add(self, status: dict[str, Any]) -> None:
        """Keep the numbers of a status document that the dashboard draws."""
        self._samples.append(summarize(status))

    def samples(self) -> list[dict[str, Any]]:
        """The samples, oldest first."""
        return list(self._samples)


def summarize(status: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a status document that the dashboard draws over time."""
    scores = status.get("scores") or {}
    window, whole = scores.get("window") or {}, scores.get("whole") or {}
    freshness = status.get("freshness_ms") or {}
    table = status.get("table") or {}
    positions = status.get("positions") or {}
    lags = [position.get("lag") for position in positions.values() if isinstance(position, dict)]
    return {
        "at_ms": wall_ms(),
        "auc_window": window.get("auc"),
        "auc_whole": whole.get("auc"),
        "samples_per_second": status.get("samples_per_second"),
        "lag": sum(lag for lag in lags if lag is not None) if lags else None,
        "freshness_p50": freshness.get("p50"),
        "freshness_p99": freshness.get("p99"),
        "staleness_ms": status.get("staleness_ms"),
        "rows": table.get("rows"),
        "version": status.get("version"),
    }
