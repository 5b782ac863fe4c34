"""The text of /metrics: gauges are brought up to date, and the values of all workers are added up."""

import threading

from springtide.app.serving.http.middleware import RequestLimits
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.shared_metrics import MetricValues, WorkerSlot
from springtide.app.serving.metrics.trainer_metrics import update_trainer_metrics
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import Part
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide.app.serving.predict.micro_batcher import MicroBatcher
from springtide_client.system.clock import wall_ms


class MetricsScraper:
    """Publishes this worker's values to the others, and renders those of all workers. Any thread may call it."""

    def __init__(
        self,
        metrics: MetricsRegistry,
        *,
        trainer: TrainerStatusReader,
        replica: Replica,
        limits: RequestLimits,
        micro_batcher: MicroBatcher,
        part: Part,
        slot: WorkerSlot | None,
    ) -> None:
        """`slot` is None if this process is the whole server."""
        self._metrics = metrics
        self._trainer = trainer
        self._replica = replica
        self._limits = limits
        self._micro_batcher = micro_batcher
        self._part = part
        self._slot = slot
        self._publishing = threading.Lock()

    def publish(self) -> MetricValues:
        """Update the gauges of this worker and share its values; values of an earlier call never replace later ones."""
        with self._publishing:
            self._update_gauges()
            values = self._metrics.values()
            if self._slot is not None:
                self._slot.shared.publish(self._slot.number, values)
            return values

    def text(self) -> str:
        """The Prometheus text of all workers; values of other workers may be a second old."""
        now_ms, metrics = wall_ms(), self._metrics
        values = self.publish()
        if self._slot is not None:
            values = metrics.aggregate(self._slot.shared.read())
        complete_until = values.gauges.get("springtide_complete_until_timestamp_seconds")
        staleness = max(0.0, now_ms / 1000 - complete_until[0][1][0]) if complete_until else None
        metrics.set("springtide_staleness_seconds", staleness)
        update_trainer_metrics(metrics, self._trainer.read(now_ms=now_ms), now_ms=now_ms)
        return metrics.text(values)

    def _update_gauges(self) -> None:
        view, metrics = self._replica.view, self._metrics
        complete_until_ms = 0 if view is None else view.own_view.meta.complete_until_ms
        metrics.set("springtide_version", None if view is None else view.version)
        metrics.set(
            "springtide_complete_until_timestamp_seconds", complete_until_ms / 1000 if complete_until_ms > 0 else None
        )
        metrics.set("springtide_ready", float(view is not None))
        metrics.set("springtide_workers", 1)
        metrics.set("springtide_rows_held", None if view is None else view.own_view.num_rows)
        hash_range = self._part.hash_range
        metrics.set("springtide_part_number", hash_range.number)
        metrics.set("springtide_parts", hash_range.count if self._part.servers is None else len(self._part.servers))
        metrics.set("springtide_predict_batches_total", self._micro_batcher.num_batches)
        metrics.set("springtide_open_streams", self._limits.num_streams)
        metrics.set("springtide_http_requests_in_flight", self._limits.num_in_flight)
