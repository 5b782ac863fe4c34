"""Everything one server process holds, passed to every route."""

import asyncio
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from springtide_client.log.directory_watcher import DirectoryWatcher
from springtide_client.system.clock import wall_ms

from app.scores.best_auc_file import read_best_auc
from app.serving.bounded_pool import BoundedPool
from app.serving.cache_folder import CacheFolder
from app.serving.config import ServeConfig
from app.serving.feed.record_cache import RecordCache
from app.serving.feed.snapshot_cache import SnapshotCache
from app.serving.http.authorization import Authorizer
from app.serving.http.errors import busy, too_many_requests
from app.serving.http.tokens import Tokens
from app.serving.lookup.codecs import STATUS_NAMES
from app.serving.model.log_follower import LogFollower
from app.serving.model.replica import Replica
from app.serving.ops.gate_metrics import declare_gate_metrics, update_gate_metrics
from app.serving.ops.registry import MetricsRegistry
from app.serving.ops.shared_metrics import MetricValues, WorkerSlot
from app.serving.ops.status import StatusHistory, TrainerStatusReader
from app.serving.ops.trainer_metrics import declare_table_metrics, numeric_items, update_table_metrics
from app.serving.predict.micro_batcher import MicroBatcher
from app.version_log.config import LogConfig

SAMPLE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Service:
    """The replica, the trainer's status, the threads and the numbers of one server."""

    def __init__(self, log: LogConfig, config: ServeConfig, tokens: Tokens, *, place: WorkerSlot | None = None) -> None:
        """`place`: among the workers of one server; absent where this process is all of it."""
        self._place = place
        self.log = log
        self.log_path = log_path = Path(log.path)
        self.config = config
        self.authorizer = Authorizer(config, tokens)
        self.metrics = declare_metrics(MetricsRegistry())
        self.record_cache = RecordCache()
        self.folder = CacheFolder(config.cache_path)
        self.replica = Replica(
            lambda on_version, on_swap: LogFollower(
                log_path,
                cache_bytes=config.cache_bytes,
                disk_bytes=config.cache_disk_bytes,
                cache_path=self.folder.path,
                on_version=on_version,
                on_swap=on_swap,
                on_record=self.record_cache.add,
            ),
            poll_interval_seconds=config.poll_interval_seconds,
            metrics=self.metrics,
            wait=DirectoryWatcher(log_path).wait,
        )
        self.trainer = TrainerStatusReader(log_path)
        self.history = StatusHistory(self.status)
        self.lookups = BoundedPool("lookup", num_threads=2, max_waiting=128)
        self.micro_batcher = MicroBatcher(
            max_rows=config.predict_max_batch_rows, wait_seconds=config.predict_batch_timeout_ms / 1000
        )
        self.scans = BoundedPool("scan", num_threads=1, max_waiting=32)
        self.files = BoundedPool("files", num_threads=2, max_waiting=64)
        self.snapshots = SnapshotCache(log_path, self.folder.path, max_bytes=config.snapshot_bytes)
        self.snapshot_work = BoundedPool("snapshot", num_threads=1, max_waiting=8)
        self.num_in_flight = self.num_streams = 0
        self._publishing = threading.Lock()
        self._started = time.monotonic()
        self._sampler: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow and to sample; call inside the event loop."""
        self.replica.start()
        self._sampler = asyncio.create_task(self._sample())

    def stop(self) -> None:
        """Wake every stream so that it ends; does not block."""
        self.replica.stop()
        self.snapshots.stop()
        self.publish()
        if self._sampler is not None:
            self._sampler.cancel()

    def close(self) -> None:
        """Let go of threads and files; after the event loop's last answer."""
        self.replica.join()
        for work in (self.lookups, self.micro_batcher, self.scans, self.files, self.snapshot_work):
            work.close()
        self.folder.close()

    def count_rows(self, status_K: npt.NDArray[np.uint8]) -> None:
        """Count looked-up rows by their status: an absent row is never silent."""
        counts = np.bincount(status_K, minlength=len(STATUS_NAMES))
        for name, count in zip(STATUS_NAMES, counts.tolist(), strict=False):
            if count:
                self.metrics.increment("springtide_rows_total", count, status=name)

    def status(self) -> dict[str, Any]:
        """The JSON of /v1/status."""
        now_ms = wall_ms()
        status = self.trainer.read(now_ms=now_ms)
        view = self.replica.view
        status["published_version"] = status.get("version")
        if view is not None:
            status["version"] = view.version
        status["freshness_ms"] = self.replica.freshness.percentiles(now_ms=now_ms)
        status["staleness_ms"] = None if view is None else self.replica.staleness_ms(view)
        status["now_ms"] = now_ms
        status["server"] = {
            "version": None if view is None else view.version,
            "ready": view is not None,
            "reason": self.replica.reason,
            "swaps": self.replica.num_swaps,
            "pid": os.getpid(),
            "workers": self.config.workers,
            "uptime_seconds": round(time.monotonic() - self._started, 1),
        }
        if (best_auc := read_best_auc(self.log_path)) is not None:
            status["simulator"] = {"best_auc": best_auc}
        return status

    def gate(self) -> dict[str, Any]:
        """What the trainer's health gate says; {} where there is none."""
        gate = self.trainer.read(now_ms=wall_ms()).get("gate")
        return gate if isinstance(gate, dict) else {}

    def publish(self) -> MetricValues:
        """Tell the other workers what this one has counted; what was told earlier never overtakes it."""
        with self._publishing:
            return self._publish()

    def _publish(self) -> MetricValues:
        view, now_ms, metrics = self.replica.view, wall_ms(), self.metrics
        fresh = self.replica.freshness.percentiles(now_ms=now_ms) or {}
        until_ms = 0 if view is None else view.complete_until_ms
        metrics.set("springtide_version", None if view is None else view.version)
        metrics.set("springtide_complete_until_seconds", until_ms / 1000 if until_ms > 0 else None)
        metrics.set("springtide_freshness_seconds", _seconds(fresh.get("p50")), quantile="0.5")
        metrics.set("springtide_freshness_seconds", _seconds(fresh.get("p99")), quantile="0.99")
        metrics.set("springtide_ready", float(view is not None))
        metrics.set("springtide_workers", 1)
        metrics.set("springtide_predict_calls_total", self.micro_batcher.num_batches)
        metrics.set("springtide_streams", self.num_streams)
        metrics.set("springtide_in_flight", self.num_in_flight)
        told = metrics.values()
        if self._place is not None:
            self._place.tally.publish(self._place.number, told)
        return told

    def scrape(self) -> str:
        """The Prometheus text of all workers, its gauges brought up to now (of the others: to a second ago)."""
        status, metrics = self.status(), self.metrics
        told = self.publish()
        if self._place is not None:
            told = metrics.aggregate(self._place.tally.read())
        until = told.gauges.get("springtide_complete_until_seconds")
        staleness = max(0.0, status["now_ms"] / 1000 - until[0][1]) if until else None
        metrics.set("springtide_staleness_seconds", staleness)
        metrics.replace_all("springtide_trainer_state", "state", {str(status.get("trainer")): 1.0})
        metrics.set("springtide_samples_trained", _number(status.get("samples_trained")))
        metrics.set("springtide_samples_per_second", _number(status.get("samples_per_second")))
        positions = {name: place for name, place in (status.get("positions") or {}).items() if isinstance(place, dict)}
        metrics.replace_all(
            "springtide_lag_records", "partition", numeric_items({n: p.get("lag") for n, p in positions.items()})
        )
        metrics.replace_all("springtide_dead_letters", "reason", numeric_items(status.get("dead_letters")))
        update_gate_metrics(metrics, status)
        update_table_metrics(metrics, status, now_ms=status["now_ms"])
        for part in ("whole", "window"):
            score = (status.get("scores") or {}).get(part) or {}
            metrics.set("springtide_auc", _number(score.get("auc")), part=part)
        return metrics.text(told)

    def begin_request(self) -> None:
        """Count one more request in flight; ApiError 429 beyond the limit."""
        if self.num_in_flight >= self.config.max_in_flight:
            raise too_many_requests("requests", self.config.max_in_flight)
        self.num_in_flight += 1

    def end_request(self) -> None:
        """The request was answered."""
        self.num_in_flight -= 1

    def open_stream(self) -> None:
        """Count one more open stream; ApiError 503 beyond the limit."""
        if self.num_streams >= self.config.max_streams:
            raise busy()
        self.num_streams += 1

    def close_stream(self) -> None:
        """The stream ended."""
        self.num_streams -= 1

    async def _sample(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._take_sample)
            except Exception:
                logger.exception("a sample failed")  # one second is missing, not all that follow
            await asyncio.sleep(SAMPLE_SECONDS)

    def _take_sample(self) -> None:
        self.history.sample()
        if self._place is not None:
            self.publish()


def declare_metrics(metrics: MetricsRegistry) -> MetricsRegistry:
    """The server's metrics, by name."""
    metrics.histogram("springtide_http_seconds", "Time until an answer was sent, by route.")
    metrics.counter("springtide_http_answers_total", "Answers by route and status.")
    metrics.counter("springtide_rows_total", "Rows looked up, by their status.")
    metrics.counter("springtide_predictions_total", "Instances scored.")
    metrics.counter("springtide_predict_calls_total", "Calls of the model that scored them.")
    metrics.counter("springtide_predict_rows_total", "Rows they rest on by status: only known ones were learned.")
    metrics.counter("springtide_swaps_total", "Versions that became servable.")
    metrics.counter("springtide_refused_total", "Requests that were not served, by why.")
    metrics.counter("springtide_workers_ended_total", "Workers that are gone, by how.")
    metrics.gauge("springtide_workers", "Processes that answer.", over="sum")
    metrics.gauge("springtide_version", "The version that is served: the oldest of all workers.", over="min")
    metrics.gauge("springtide_ready", "Whether a version is served, by all workers.", over="min")
    metrics.gauge("springtide_complete_until_seconds", "Records readable by then are in what is served.", over="min")
    metrics.gauge("springtide_staleness_seconds", "Now minus complete_until of the served version.")
    metrics.gauge("springtide_freshness_seconds", "Record timestamp until servable, over the last minute.", over="max")
    metrics.histogram("springtide_servable_seconds", "Record timestamp until servable, of sampled records.")
    metrics.counter("springtide_applied_bytes_total", "Bytes of versions that became servable.")
    metrics.gauge("springtide_in_flight", "Requests that are being answered, without streams and probes.", over="sum")
    metrics.gauge("springtide_streams", "Open streams and long polls.", over="sum")
    metrics.gauge("springtide_trainer_state", "1 for the trainer's state.")
    metrics.gauge("springtide_samples_trained", "Samples learned since the log began.")
    metrics.gauge("springtide_samples_per_second", "Samples learned a second.")
    metrics.gauge("springtide_lag_records", "End of the partition minus what was learned.")
    metrics.gauge("springtide_dead_letters", "Records that could not be learned, by reason.")
    declare_gate_metrics(metrics)
    declare_table_metrics(metrics)
    metrics.gauge("springtide_auc", "Progressive AUC: each sample scored before it was learned.")
    return metrics


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000
