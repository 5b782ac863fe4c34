"""The JSON of /v1/status: the trainer's status joined with what this server measures, and its recent past."""

import os
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import msgspec

from springtide.app.scores.best_auc import read_best_auc
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide.app.version_log.trainer_status import Percentiles, TrainerStatus
from springtide_client.system.clock import wall_ms


class Ages(Percentiles, frozen=True):
    """Percentiles of the age of records in ms."""

    p50: float
    p99: float


class CatchUpAges(Ages, frozen=True):
    """Those of the newest time in which the trainer caught up, and how long it took; `ended_ms` None: it goes on."""

    seconds: float
    ended_ms: int | None


class PartStatus(msgspec.Struct):
    """The part of all rows that the server holds; `range` None: none. `parts` are the addresses of all."""

    range: str | None
    router: bool
    rows: int | None
    parts: list[str]


class ServerStatus(msgspec.Struct):
    """This server; `reason` says why no version, or no newer one, is served. `part` None: it holds all rows."""

    version: int | None
    ready: bool
    reason: str
    swaps: int
    pid: int
    workers: int
    part: PartStatus | None
    uptime_seconds: float


class SimulatorStatus(msgspec.Struct):
    """The best AUC that is possible on the clicks of the demo."""

    best_auc: float


class StatusSample(msgspec.Struct):
    """The numbers that the dashboard draws over time."""

    at_ms: int
    auc_window: float | None
    auc_whole: float | None
    samples_per_second: float
    lag: int | None
    freshness_p50: float | None
    freshness_p99: float | None
    staleness_ms: int | None
    rows: dict[str, int]
    version: int | None


class StatusResponse(TrainerStatus, frozen=True, kw_only=True):
    """The trainer's status, joined with what this server measures. Keys of `table` that are not listed are counters."""

    published_version: int | None
    freshness_ms: Ages | None
    catching_up_ms: CatchUpAges | None
    staleness_ms: Annotated[int, msgspec.Meta(ge=0)] | None
    now_ms: int
    server: ServerStatus
    simulator: SimulatorStatus | msgspec.UnsetType = msgspec.UNSET
    history: list[StatusSample] | msgspec.UnsetType = msgspec.UNSET

    def sample(self) -> StatusSample:
        """Return what is kept of it."""
        whole, window, ages = self.scores.whole, self.scores.window, self.freshness_ms
        return StatusSample(
            at_ms=wall_ms(),
            auc_window=window.auc,
            auc_whole=whole.auc,
            samples_per_second=self.samples_per_second,
            lag=self.lag,
            freshness_p50=None if ages is None else ages.p50,
            freshness_p99=None if ages is None else ages.p99,
            staleness_ms=self.staleness_ms,
            rows=self.table.rows,
            version=self.version,
        )


class ServerStatusReporter:
    """Reads and measures; any thread may call it."""

    def __init__(
        self,
        log_path: Path,
        *,
        trainer: TrainerStatusReader,
        replica: Replica,
        num_workers: int,
    ) -> None:
        self._log_path = log_path
        self._trainer = trainer
        self._replica = replica
        self._num_workers = num_workers
        self._started = time.monotonic()

    def read(self) -> StatusResponse:
        """The present status."""
        now_ms, replica = wall_ms(), self._replica
        trainer, view = self._trainer.read(now_ms=now_ms), replica.view
        version = None if view is None else view.version
        of_trainer = msgspec.structs.asdict(trainer) | {"version": trainer.version if version is None else version}
        ages, catching_up = replica.freshness.caught_up.percentiles(now_ms=now_ms), replica.freshness.catching_up
        best_auc = read_best_auc(self._log_path)
        measured: dict[str, Any] = {
            "published_version": trainer.version,
            "freshness_ms": None if ages is None else Ages(**ages),
            "catching_up_ms": None if (found := catching_up.document()) is None else CatchUpAges(**found),
            "staleness_ms": None if view is None else replica.staleness_ms(view),
            "now_ms": now_ms,
            "server": ServerStatus(
                version=version,
                ready=view is not None,
                reason=replica.reason,
                swaps=replica.num_swaps,
                pid=os.getpid(),
                workers=self._num_workers,
                part=self._part_status(view),
                uptime_seconds=round(time.monotonic() - self._started, 1),
            ),
            "simulator": msgspec.UNSET if best_auc is None else SimulatorStatus(best_auc),
        }
        return StatusResponse(**of_trainer | measured)

    def _part_status(self, view: ServedView | None) -> PartStatus | None:
        part = self._replica.part
        if part.holds_all:
            return None
        return PartStatus(
            range=None if part.hash_range.is_empty else str(part.hash_range),
            router=part.is_router,
            rows=None if view is None else view.own_view.num_rows,
            parts=[] if part.servers is None else list(part.servers.urls),
        )


MAX_SAMPLES = 900


class StatusHistory:
    """A ring of samples. One thread adds, any thread may read."""

    def __init__(self) -> None:
        self._samples: deque[StatusSample] = deque(maxlen=MAX_SAMPLES)

    def add(self, sample: StatusSample) -> None:
        """Keep a sample."""
        self._samples.append(sample)

    def samples(self) -> list[StatusSample]:
        """The samples, oldest first."""
        return list(self._samples)
