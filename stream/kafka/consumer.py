"""Reads partitions of a topic by position, without a consumer group.

Knows offsets and raw bytes; no format, no queue, no retry: a failure is raised as a StreamError of one line.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.connection import connect
from springtide.stream.kafka.library import kafka, prepare_library, translate_error
from springtide.stream.kafka.raw_fetch import (
    FetchObserver,
    PartitionEnd,
    RawBatch,
    install_raw_fetch,
    supports_raw_fetch,
)
from springtide.stream.kafka.receiving import receive_in_place
from springtide.stream.kafka.record_batches import records_from_objects
from springtide.stream.positions import Partition

GAP_TIMEOUT_SECONDS = 1.0  # a gap that is still open after this long will not be filled

logger = logging.getLogger(__name__)


class GapDetector:
    """Detects offsets that the embedded broker has assigned but not stored yet: reading past them would lose records.

    Tansu assigns a producer its offsets first and stores the batch afterwards; a fetch in between returns what another
    producer sent later. So fetched records are truncated at the first gap, until the gap is filled or has timed out.
    With other brokers a gap is what compaction or the end of a transaction left, so it is not awaited.
    """

    def __init__(self, offsets: Mapping[Partition, int], clock: Callable[[], float] = time.monotonic) -> None:
        """`offsets`: the offset that each partition is read from."""
        self._next = dict(offsets)
        self._clock = clock
        self._awaited: dict[Partition, tuple[int, float]] = {}  # the gap that is waited for, and since when
        self.num_skipped = 0  # gaps that timed out

    def truncate(self, raws: Iterable[RawRecords]) -> tuple[list[RawRecords], dict[Partition, int]]:
        """The records before each partition's first gap, and the offsets at which those gaps must be fetched again."""
        before: list[RawRecords] = []
        refetch: dict[Partition, int] = {}
        for raw in raws:
            if raw.partition in refetch:
                continue
            gap = self._first_gap(raw)
            if gap is not None:
                refetch[raw.partition] = gap
                raw = raw.before(gap)
            else:
                self._awaited.pop(raw.partition, None)
            self._next[raw.partition] = raw.end
            before.append(raw)
        return before, refetch

    def _first_gap(self, raw: RawRecords) -> int | None:
        """The offset at which the first gap begins that has not timed out; None without one."""
        if not len(raw):
            return None
        expected_N = np.concatenate([[self._next[raw.partition]], raw.offset_N[:-1] + 1])
        now = self._clock()
        for n in np.flatnonzero(raw.offset_N > expected_N):
            gap = int(expected_N[n])
            awaited, since = self._awaited.get(raw.partition, (-1, now))
            if awaited != gap:
                self._awaited[raw.partition] = gap, now
                return gap
            if now - since < GAP_TIMEOUT_SECONDS:
                return gap
            self.num_skipped += 1
            logger.warning("offset gap skipped", extra={"partition": str(raw.partition), "offset": gap})
        return None


# without observed responses a fetch may have been sent this long before its response is seen
UNOBSERVED_SECONDS = 1.0


class PartitionConsumer:
    """Reads the given partitions from the given offsets on, as RawRecords."""

    def __init__(
        self,
        config: KafkaConfig,
        offsets: Mapping[Partition, int],
        *,
        raw: bool = True,
        wait_for_gaps: bool = False,
    ) -> None:
        """With `raw` False, or a kafka-python without the needed names, record objects are polled: slower, but equal.

        `wait_for_gaps`: read past a gap in the offsets only once it has timed out (see GapDetector).
        """
        prepare_library()
        self.config = config
        try:
            self.consumer = connect(
                kafka.KafkaConsumer,
                config,
                group_id=None,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                enable_incremental_fetch_sessions=False,
                fetch_max_wait_ms=config.fetch_wait_ms,
                max_partition_fetch_bytes=config.max_partition_fetch_bytes,
                fetch_max_bytes=config.max_fetch_bytes,
                max_poll_records=config.max_fetch_bytes if raw else 5000,
                metrics_enabled=False,
            )
        except kafka.errors.KafkaError as error:
            raise translate_error(error, config) from None
        self.receives_in_place = receive_in_place(self.consumer)
        self._gaps = GapDetector(offsets) if wait_for_gaps else None
        self.is_raw = raw and supports_raw_fetch(self.consumer)
        if self.is_raw:
            install_raw_fetch(self.consumer, max_batch_bytes=config.max_batch_bytes)
        self._observer = FetchObserver(
            min_wait_ms=config.fetch_wait_ms, full_bytes=config.max_partition_fetch_bytes // 2
        )
        self.observes_responses = self._observer.observe_responses(self.consumer)
        self._observer.adapt_requests(self.consumer)
        self.topic_partitions = {partition: kafka.TopicPartition(*partition) for partition in offsets}
        self.consumer.assign(list(self.topic_partitions.values()))
        for partition, offset in offsets.items():
            self.consumer.seek(self.topic_partitions[partition], offset)

    @property
    def ends(self) -> Mapping[Partition, PartitionEnd]:
        """Where each partition ended when it was last fetched; partitions not fetched yet are missing."""
        return self._observer.ends

    def poll(self, timeout_seconds: float) -> list[RawRecords]:
        """The records that arrive within the time, in the order of their offsets within a partition.

        Raises StreamError, such as OffsetOutOfRangeError or CorruptBatchError.
        """
        self._observer.polling_since = called = time.monotonic()
        try:
            polled = self.consumer.poll(timeout_ms=int(timeout_seconds * 1000))
        except (kafka.errors.KafkaError, ValueError) as error:
            raise translate_error(error, self.config) from None
        if not self.observes_responses:
            for partition, topic_partition in self.topic_partitions.items():
                if (end := self.consumer.highwater(topic_partition)) is not None:
                    self._observer.ends[partition] = PartitionEnd(end, called - UNOBSERVED_SECONDS)
        raws = self._raw_records(polled)
        if self._gaps is None:
            return raws
        raws, refetch = self._gaps.truncate(raws)
        for partition, offset in refetch.items():
            self.consumer.seek(self.topic_partitions[partition], offset)  # also drops the fetch in flight
        return raws

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop fetching these partitions, and resume all others."""
        paused = {self.topic_partitions[partition] for partition in partitions}
        before = self.consumer.paused()
        if resumed := before - paused:
            self.consumer.resume(*resumed)
        if newly := paused - before:
            self.consumer.pause(*newly)

    def close(self) -> None:
        """Close the connections; an unavailable broker does not delay it."""
        self.consumer.close(autocommit=False, timeout_ms=500)

    def _raw_records(self, polled: Mapping[Any, list[Any]]) -> list[RawRecords]:
        if self.is_raw:
            return [batch.raw for batches in polled.values() for batch in batches if isinstance(batch, RawBatch)]
        return [
            records_from_objects(Partition(*topic_partition), records, self.consumer.position(topic_partition))
            for topic_partition, records in polled.items()
        ]
