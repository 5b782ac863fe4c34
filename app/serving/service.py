"""The parts of one server process: built here, started and closed together."""

import asyncio
import logging
from pathlib import Path

from springtide.app.serving.bounded_pool import Pools
from springtide.app.serving.cache_folder import CacheFolder
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.feed.snapshot_routes import SnapshotCache
from springtide.app.serving.http.authorization import Tokens, read_token
from springtide.app.serving.http.fast_path import FastPath
from springtide.app.serving.http.middleware import AccessLog, RequestLimits
from springtide.app.serving.lookup.batch_lookup import KnownLookups, RowCounters
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.server_metrics import declare_metrics
from springtide.app.serving.metrics.shared_metrics import WorkerSlot
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import Part
from springtide.app.serving.model.trainer_status import TrainerStatusReader
from springtide.app.serving.ops.scrape import MetricsScraper
from springtide.app.serving.ops.status import ServerStatusReporter, StatusHistory
from springtide.app.serving.parts.lookup_batcher import LookupBatcher
from springtide.app.serving.predict.micro_batcher import MicroBatcher
from springtide.app.serving.retrieve.retriever import Retriever
from springtide.app.version_log.config import LogConfig
from springtide_client.log.directory import DirectoryWatcher

SAMPLE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Service:
    """The replica, the trainer's status, the threads and the metrics of one server process."""

    def __init__(
        self,
        log: LogConfig,
        config: ServeConfig,
        tokens: Tokens,
        *,
        slot: WorkerSlot | None = None,
        version: int | None = None,
    ) -> None:
        """`slot` is this process's place among several workers, None if it is the whole server.

        `version`: serve this one and no other; None: follow the log.
        """
        log_path = Path(log.path)
        self.log = log
        self.config = config
        self.exploration = config.exploration
        self.tokens = tokens
        self.limits = RequestLimits(max_in_flight=config.max_in_flight, max_streams=config.max_streams)
        self.metrics = declare_metrics(MetricsRegistry())
        self.access_log = AccessLog(config.access_log_sample_rate)
        self.fast_path = FastPath(self.metrics, self.access_log)
        self.row_counts = RowCounters(self.metrics)
        self.pools = Pools()
        token = read_token(config) if config.parts else None
        self.part = Part.of(config, token, self._note_part_response)
        self.lookup_batcher: LookupBatcher | None = None
        if self.part.is_router and self.part.servers is not None:
            self.lookup_batcher = LookupBatcher(self.part.servers, self.part.hash_range)
        self._folder = CacheFolder(config.cache_path)
        self.fixed_version = version
        self.replica = Replica(
            log_path,
            metrics=self.metrics,
            poll_interval_seconds=config.poll_interval_seconds,
            cache_bytes=config.cache_bytes,
            disk_bytes=config.cache_disk_bytes,
            cache_path=self._folder.path,
            part=self.part,
            version=version,
            wait=DirectoryWatcher(log_path).wait,
            on_base=lambda view: self.retriever.start(view),
        )
        self.known_lookups = KnownLookups(self.replica, self.row_counts, self.lookup_batcher, max_ids=config.max_ids)
        self.retriever = Retriever(lambda: self.replica.view, self.metrics, part=self.part)
        self.trainer = TrainerStatusReader(log_path)
        self.micro_batcher = MicroBatcher(
            max_rows=config.predict_max_batch_rows,
            wait_seconds=config.predict_batch_timeout_ms / 1000,
            # one batch is scored while the rows of another are on their way
            num_threads=1 if self.part.servers is None else 4,
        )
        self.snapshots = SnapshotCache(log_path, self._folder.path, max_bytes=config.snapshot_bytes)
        self.status = ServerStatusReporter(
            log_path, trainer=self.trainer, replica=self.replica, num_workers=config.workers
        )
        self.history = StatusHistory()
        self.scraper = MetricsScraper(
            self.metrics,
            trainer=self.trainer,
            replica=self.replica,
            limits=self.limits,
            micro_batcher=self.micro_batcher,
            part=self.part,
            slot=slot,
        )
        self._has_other_workers = slot is not None
        self._sampler: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to follow the log and to sample the status; call inside the event loop."""
        self.replica.start()
        self._sampler = asyncio.create_task(self._sample())

    def stop(self) -> None:
        """Wake every stream so that it ends; does not block."""
        self.replica.stop()
        if self.lookup_batcher is not None:
            self.lookup_batcher.close()
        self.retriever.stop()
        self.snapshots.stop()
        self.scraper.publish()
        if self._sampler is not None:
            self._sampler.cancel()

    def close(self) -> None:
        """Release threads and files, after the event loop has sent its last response."""
        self.replica.follower.close()
        self.retriever.join()
        self.micro_batcher.close()
        self.part.close()
        self.pools.close()
        self._folder.close()

    def _note_part_response(self, hash_range: str, outcome: str, seconds: float) -> None:
        self.metrics.observe("springtide_part_request_duration_seconds", seconds, range=hash_range, outcome=outcome)

    async def _sample(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._take_sample)
            except Exception:
                logger.exception("sampling the status failed")  # one second is missing, later ones are not
            await asyncio.sleep(SAMPLE_SECONDS)

    def _take_sample(self) -> None:
        self.history.add(self.status.read().sample())
        if self._has_other_workers:
            self.scraper.publish()
