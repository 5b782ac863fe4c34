"""Sends a file's rows to a topic, in order and at a rate."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from springtide.app.errors import UserError
from springtide.app.tools.progress_bar import ProgressBar
from springtide.app.tools.send_limits import LINGER_MS, RateLimiter, TopicQuota, warn_of_retention
from springtide.stream.config import SourceConfig
from springtide.stream.history.input_file import FileRow, InputFile
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer, partition_of_key
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import Position
from springtide_client.system.settings import Settings

COMPARED_RECORDS = 100  # of the end of each partition
SETTLE_SECONDS = 0.5


class ReplayConfig(Settings, frozen=True, kw_only=True):
    """The options of `springtide replay`."""

    path: Path
    rate: Annotated[float, Meta(gt=0)] | None = None  # messages per second; None: as fast as possible
    loop: bool = False
    limit: Annotated[int, Meta(ge=0)] | None = None
    resume: bool = False  # go on where the topic ends
    partitions: Annotated[int, Meta(ge=1)] | None = None
    key: str | None = None
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loop and self.resume:
            raise ValueError("resume does not go with --loop: a topic does not say in which pass over the file it ends")


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
        encode = self._source.open_codec().encode
        ends = Counter[int]() if not self.config.resume else self._find_ends(num_partitions, encode)
        progress = self._progress or ProgressBar()
        with Producer(connection, linger_ms=LINGER_MS, compression=self.config.compression, patient=True) as producer:
            quota = TopicQuota(self._source, self._log_path) if self.config.loop else None
            limiter = RateLimiter(self.config.rate)
            for number, row in enumerate(self._rows()):
                partition = partition_of(row, number, num_partitions)
                if ends[partition] > 0:  # the topic has it
                    ends[partition] -= 1
                    continue
                if self.config.rate is not None:
                    limiter.wait(self.num_sent, stopping)
                if stopping.is_set():
                    break
                if quota is not None:
                    limiter.skip(quota.wait_for_room(producer, stopping))
                producer.send(self._source.topic, encode(row.value), key=row.key, partition=partition)
                self.num_sent += 1
                progress.show(self.num_sent, self._fraction_done(row))
            producer.flush()
        progress.end(self.num_sent, self._source.topic)
        return self.num_sent

    def _find_ends(self, num_partitions: int, encode: Callable[[bytes], bytes]) -> Counter[int]:
        """Return how many records each partition holds: the first of the rows that go there.

        A partition holds its rows in order, so nothing but their number is needed, neither a mark in each record nor a
        producer that Kafka recognizes. UserError if its last records are not these rows.
        """
        kafka = self._source.kafka_config()
        with Admin(kafka, patient=True) as admin:
            topic = admin.require_topic(self._source.topic)
            begins, ends = admin.beginning_offsets(topic), admin.end_offsets(topic)
            while True:  # what the killed replay sent last may still be on its way
                time.sleep(SETTLE_SECONDS)
                before, ends = ends, admin.end_offsets(topic)
                if ends == before:
                    break
        expected: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}
        for partition, end in ends.items():
            start, stop = Position(topic.id, max(begins[partition], end - COMPARED_RECORDS)), Position(topic.id, end)
            for raw in read_range(kafka, {partition: start}, {partition: stop}) if start.offset < end else ():
                for n, offset in enumerate(raw.offset_N.tolist()):
                    expected[partition.number, offset] = raw.key(n), raw.value(n)
        held = Counter({partition.number: end for partition, end in ends.items() if end})
        counts = Counter[int]()
        for number, row in enumerate(self._rows()):
            if counts == held:
                break
            at = partition_of(row, number, num_partitions)
            found = expected.get((at, counts[at]))
            if found is not None and found != (row.key, encode(row.value)):
                raise UserError(
                    f"--resume: record {counts[at]} of {topic.name}/{at} is not row {number + 1} of "
                    f"{self.config.path.name}: go on with the same file and options, in a topic that held nothing else"
                )
            if counts[at] < held[at]:
                counts[at] += 1
        if counts != held:
            raise UserError(
                f"--resume: {topic.name!r} holds {held.total():,} records, {self.config.path.name} has fewer rows: go "
                "on with the same file and options, in a topic that held nothing else"
            )
        return held

    def _make_topic(self) -> int:
        """Create the topic if it is missing; return its number of partitions."""
        wanted = self.config.partitions
        with Admin(self._source.kafka_config(), patient=True) as admin:
            topic = admin.ensure_topic(self._source.topic, num_partitions=wanted or 1)
            if not self._source.uses_embedded_broker:
                warn_of_retention(admin, topic.name)
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


def partition_of(row: FileRow, number: int, num_partitions: int) -> int:
    """Return the partition of row `number`: its key chooses; without keys they take turns, so each is in order."""
    return number % num_partitions if row.key is None else partition_of_key(row.key, num_partitions)
