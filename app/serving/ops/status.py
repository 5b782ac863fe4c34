"""The JSON of /v1/status: the trainer's status joined with what this server measures, and its recent past."""

import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from springtide.app.scores.best_auc import read_best_auc
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import WHOLE, Part
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide_client.system.clock import wall_ms


class ServerStatusReporter:
    """Builds the status document; any thread may call it."""

    def __init__(
        self,
        log_path: Path,
        *,
        trainer: TrainerStatusReader,
        replica: Replica,
        num_workers: int,
        part: Part = WHOLE,
    ) -> None:
        self._log_path = log_path
        self._trainer = trainer
        self._replica = replica
        self._num_workers = num_workers
        self._part = part
        self._started = time.monotonic()

    def document(self) -> dict[str, Any]:
        """The whole document."""
        now_ms = wall_ms()
        replica = self._replica
        status = self._trainer.read(now_ms=now_ms).to_json()
        view = replica.view
        status["published_version"] = status["version"]
        if view is not None:
            status["version"] = view.version
        status["freshness_ms"] = replica.freshness.caught_up.percentiles(now_ms=now_ms)
        status["catching_up_ms"] = replica.freshness.catching_up.document()
        status["staleness_ms"] = None if view is None else replica.staleness_ms(view)
        status["now_ms"] = now_ms
        status["server"] = {
            "version": None if view is None else view.version,
            "ready": view is not None,
            "reason": replica.reason,
            "swaps": replica.num_swaps,
            "pid": os.getpid(),
            "workers": self._num_workers,
            "part": self._part.document(None if view is None else view.own_view),
            "uptime_seconds": round(time.monotonic() - self._started, 1),
        }
        if (best_auc := read_best_auc(self._log_path)) is not None:
            status["simulator"] = {"best_auc": best_auc}
        return status


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
