"""The JSON of /v1/status: the trainer's status joined with what this server measures."""

import os
import time
from pathlib import Path
from typing import Any

from springtide.app.scores.best_auc import read_best_auc
from springtide.app.serving.model.part import WHOLE, Part
from springtide.app.serving.model.replica import Replica
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
