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
    freshness = status["freshness_ms"] or {"p50": None, "p99": None}
    lags = [position["lag"] for position in status["positions"].values() if position["lag"] is not None]
    return {
        "at_ms": wall_ms(),
        "auc_window": status["scores"]["window"]["auc"],
        "auc_whole": status["scores"]["whole"]["auc"],
        "samples_per_second": status["samples_per_second"],
        "lag": sum(lags) if lags else None,
        "freshness_p50": freshness["p50"],
        "freshness_p99": freshness["p99"],
        "staleness_ms": status["staleness_ms"],
        "rows": status["table"]["rows"],
        "version": status["version"],
    }
