"""Sends a file's rows to a topic, in order and at a rate."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from springtide.app.errors import UserError
from springtide.app.tools.progress_bar import ProgressBar
from springtide.app.tools.send_limits import LINGER_MS, RateLimiter, TopicQuota
from springtide.stream.config import SourceConfig
from springtide.stream.history.input_file import FileRow, InputFile
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from springtide_client.system.settings import Settings


class ReplayConfig(Settings, frozen=True, kw_only=True):
    """The options of `springtide replay`."""

    path: Path
    rate: Annotated[float, Meta(gt=0)] | None = None  # messages per second; None: as fast as possible
    loop: bool = False
    limit: Annotated[int, Meta(ge=0)] | None = None
    partitions: Annotated[int, Meta(ge=1)] | None = None
    key: str | None = None
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None


class Replay:
    """One run over a file."""

    def __init__(
        self, config: ReplayConfig, source: SourceConfig, *, log_path: Path, progress: ProgressBar | None = None
    ) -> None:
        self.config = config
        self._source = source
        self._log_path = log_path
        self._file = InputFile(config.path, key=config.key)
        self._progress = progress
        self.num_sent = 0

    def run(self, stopping: threading.Event) -> int:
        """Send until the end, the limit or `stopping`; return how many messages the broker has acknowledged."""
        connection = self._source.kafka_config()
        num_partitions = self._make_topic()
        progress = self._progress or ProgressBar()
        with Producer(connection, linger_ms=LINGER_MS, compression=self.config.compression, patient=True) as producer:
            quota = TopicQuota(self._source, self._log_path) if self.config.loop else None
            limiter = RateLimiter(self.config.rate)
            encode = self._source.open_codec().encode
            for row in self._rows():
                if self.config.rate is not None:
                    limiter.wait(self.num_sent, stopping)
                if stopping.is_set():
                    break
                if quota is not None:
                    limiter.skip(quota.wait_for_room(producer, stopping))
                # the key chooses the partition; without keys they take turns, so that each holds the file's order
                by_key = row.key is not None
                partition = None if by_key else self.num_sent % num_partitions
                producer.send(self._source.topic, encode(row.value), key=row.key, partition=partition)
                self.num_sent += 1
                progress.show(self.num_sent, self._fraction_done(row))
            producer.flush()
        progress.end(self.num_sent, self._source.topic)
        return self.num_sent

    def _make_topic(self) -> int:
        """Create the topic if it is missing; return its number of partitions."""
        wanted = self.config.partitions
        with Admin(self._source.kafka_config(), patient=True) as admin:
            topic = admin.ensure_topic(self._source.topic, num_partitions=wanted or 1)
        if wanted is not None and topic.num_partitions != wanted:
            raise UserError(
                f"--partitions {wanted}: topic {topic.name!r} exists with {topic.num_partitions}; "
                "leave out the option, or name another [source] topic"
            )
        return topic.num_partitions

    def _rows(self) -> Iterator[FileRow]:
        limit = self.config.limit
        if limit == 0:
            return
        num = 0
        while True:
            before = num
            for row in self._file.rows():
                yield row
                num += 1
                if num == limit:
                    return
            if not self.config.loop or num == before:
                return

    def _fraction_done(self, row: FileRow) -> float:
        if self.config.limit is None:
            return row.fraction
        within = self.num_sent / self.config.limit
        return within if self.config.loop else max(within, row.fraction)
