"""The loop that reads one topic through one connection, until the connection or the topic is lost.

It checks that the topic is still the same one, decodes, merges partitions by event time, and fills the queue.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping

import numpy as np

from springtide.stream.column_queue import ColumnQueue, EventTimeMerge
from springtide.stream.columns import Columns, RawRecords
from springtide.stream.config import SourceConfig
from springtide.stream.decode.decoder import DecodePipeline
from springtide.stream.errors import (
    BrokerUnavailableError,
    OffsetOutOfRangeError,
    RetriableError,
    StreamError,
    TopicNotFoundError,
    TopicResetError,
)
from springtide.stream.kafka.admin import Admin, Topic
from springtide.stream.kafka.connection import unreachable_reason
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare, Position
from springtide.stream.watermark import FreshnessTracker
from springtide_client.system.clock import Backoff

logger = logging.getLogger(__name__)


class SourceStatus:
    """The state of a source and the reason for it. Written by the reading thread, read by any.

    `state` is "waiting" (for a broker, a topic or a schema registry, as `reason` says), "reading", "finished", "failed"
    or "closed".
    """

    def __init__(self, topic: str, *, is_connected: bool = False) -> None:
        self.topic = topic
        self.state, self.reason = ("reading", "") if is_connected else ("waiting", "not connected yet")
        self.progress = ""  # what is read, where that is not the topic's end: a file of the history
        self.num_resets = 0  # how often the topic had been re-created, or no longer held the positions
        self.num_deleted_unread = 0  # records that the broker had deleted before they were read
        self._waiting_since = None if is_connected else time.monotonic()

    @property
    def waiting_seconds(self) -> float:
        """How long something has been waited for; 0 while reading."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    def set_reading(self) -> None:
        """The topic is connected."""
        if self.state != "reading":
            logger.info("reading", extra={"topic": self.topic})
        self.state, self.reason, self._waiting_since = "reading", "", None

    def set_waiting(self, reason: str) -> None:
        """The broker, the topic or a schema is unavailable; logged when the reason is a new one."""
        if self.state != "waiting" or self.reason != reason:
            logger.warning("waiting: %s", reason, extra={"topic": self.topic})
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        self.state, self.reason = "waiting", reason

    def set_ended(self, state: str, reason: str | None = None) -> None:
        """Nothing more will be read: "finished", "failed" or "closed"; without a reason the last one is kept."""
        self.state = state
        if reason is not None:
            self.reason = reason

    def count_reset(self, reason: str, num_deleted: int) -> None:
        """The offsets start over; so many records were deleted before they were read."""
        self.num_resets += 1
        self.num_deleted_unread += num_deleted
        counts = {"num_resets": self.num_resets, "num_deleted_unread": self.num_deleted_unread}
        logger.warning("topic reset: %s", reason, extra={"topic": self.topic, **counts})


POLL_SECONDS = 0.05
# the topic's id is checked after a fetch: what was fetched before a check belongs to the topic that the check finds
TOPIC_CHECK_SECONDS, IDLE_TOPIC_CHECK_SECONDS = 0.02, 0.5
# more than a partition can receive within TOPIC_CHECK_SECONDS: 10 million records a second
REFILL_RECORDS = 200_000
FULL_CHECK_SECONDS = 1.0  # between two questions for the ends while the queue is full
MAX_HOLD_SECONDS = 2.0  # how long a partition that is behind and silent holds back the others
REPORT_SECONDS = 1.0
FRESH_SECONDS = 1.0  # after that, where a partition ends may be another place
# between two requests for a schema while its registry does not have an answer
FIRST_FORMAT_WAIT_SECONDS, LONGEST_FORMAT_WAIT_SECONDS = 0.1, 2.0
# how long a source that ends tries to report its last positions; a new cluster makes __consumer_offsets meanwhile
LAST_REPORT_SECONDS, LAST_REPORT_PAUSE_SECONDS = 10.0, 0.2


class TopicChangedError(RetriableError):
    """The topic was re-created, or positions were reset: run the loop again at once."""


class ConsumerLoop:
    """Reads from `positions` on, which outlive the connection, into the queue.

    run() belongs to the reading thread. stop_at(), stop_at_end(), report_offsets() and the properties may be used by
    any thread.
    """

    def __init__(
        self,
        config: SourceConfig,
        positions: Mapping[Partition, Position],
        *,
        decoder: DecodePipeline,
        queue: ColumnQueue,
        freshness: FreshnessTracker,
        status: SourceStatus,
        closing: threading.Event,
        share: PartitionShare = ALL_PARTITIONS,
        read_before: Mapping[Partition, int] | None = None,
    ) -> None:
        """`positions` of partitions outside of `share` are left alone. `read_before`: up to where was read once."""
        self._read_before = read_before or {}
        self.config, self.share = config, share
        # the next offsets to fetch; what was fetched is in the merge or in the queue
        self.positions = {partition: at for partition, at in positions.items() if share.holds(partition)}
        self.num_partitions: int | None = None  # of the share; None before the topic is found
        self.queued_positions: dict[Partition, Position] = {}  # everything before them is, or was, in the queue
        self.ends: dict[Partition, int] = {}
        self._ends_requested_at = 0.0
        self.stop_offsets: dict[Partition, int] | None = None
        self._start_positions: dict[Partition, Position] = {}  # where reading began in the topic as it is now
        self._stop_requested_at: float | None = None
        self._offsets_to_report: dict[Partition, int] | None = None
        self._decoder, self._queue, self._freshness = decoder, queue, freshness
        self._status, self._closing = status, closing
        self._merge = EventTimeMerge()
        self._format_backoff = Backoff(FIRST_FORMAT_WAIT_SECONDS, LONGEST_FORMAT_WAIT_SECONDS)
        self._last_record_at: dict[Partition, float] = {}
        self._checked_at = self._progressed_at = self._reported_at = 0.0

    def stop_at(self, offsets: Mapping[Partition, int]) -> None:
        """Read nothing at or after these offsets, and end there."""
        self.stop_offsets = dict(offsets)

    def stop_at_end(self) -> None:
        """End where the partitions end when the broker is next asked."""
        self._stop_requested_at = time.monotonic()

    def report_offsets(self, offsets: Mapping[Partition, int]) -> None:
        """Commit these offsets to the consumer group, at most once per REPORT_SECONDS."""
        self._offsets_to_report = dict(offsets)

    def report_last_offsets(self, seconds: float = LAST_REPORT_SECONDS) -> None:
        """Commit what is not committed yet, within a bounded time. Call it when the reading thread has ended."""
        offsets, self._offsets_to_report = self._offsets_to_report, None
        if offsets is None or self.config.group is None:
            return
        deadline = time.monotonic() + seconds
        while True:
            try:
                with Admin(self.config.kafka_config()) as admin:
                    admin.report_offsets(self.config.group, offsets)
                    return
            except StreamError as error:
                is_late = time.monotonic() + LAST_REPORT_PAUSE_SECONDS > deadline
                if is_late or not isinstance(error, RetriableError) or isinstance(error, BrokerUnavailableError):
                    logger.warning("offsets not reported: %s", error, extra={"group": self.config.group})
                    return
            time.sleep(LAST_REPORT_PAUSE_SECONDS)

    def idle_partitions(self, seconds: float) -> set[Partition]:
        """The partitions that are read to their end and have had no record for this long."""
        now = time.monotonic()
        return {
            partition
            for partition, end in self.ends.items()
            if self._offset(partition) >= end and now - self._last_record_at.get(partition, 0.0) > seconds
        }

    @property
    def has_fresh_ends(self) -> bool:
        """True if the broker has just said where the partitions end."""
        return time.monotonic() - self._ends_requested_at < FRESH_SECONDS

    @property
    def num_unfetched(self) -> int:
        """Records between what was fetched and where the partitions ended at the last fetch."""
        return sum(max(0, end - self._offset(partition)) for partition, end in self.ends.items())

    def current_positions(self, positions: Mapping[Partition, Position]) -> dict[Partition, Position]:
        """These positions in the topic as it is now: positions in an older topic become where reading began."""
        current = dict(self._start_positions)
        for partition, start in current.items():
            position = positions.get(partition, start)
            if position.topic_id == start.topic_id:
                current[partition] = position
        return current

    def run(self) -> None:
        """1. Find the broker. 2. Find the topic. 3. Resolve the positions. 4. Read until something ends it.

        Returns when closed or when the stop offsets are reached. Raises TopicChangedError to be run again at once,
        another RetriableError to be run again later, StreamError when reading cannot go on.
        """
        kafka = self.config.kafka_config()
        if reason := unreachable_reason(kafka.bootstrap_servers):
            raise BrokerUnavailableError(f"Kafka: {reason}: start the broker, or correct [source] bootstrap_servers")
        with Admin(kafka) as admin:
            topic = admin.require_topic(self.config.topic)
            self._resolve_positions(admin, topic)
            started_in = {partition: start.topic_id for partition, start in self._start_positions.items()}
            partitions = self.share.of(topic.partitions)
            self.num_partitions = len(partitions)
            if started_in != dict.fromkeys(partitions, topic.id):
                self._start_positions = dict(self.positions)
            offsets = {partition: self.positions[partition].offset for partition in partitions}
            if not partitions:
                self._wait_without_partitions(admin, topic)
                return
            consumer = PartitionConsumer(kafka, offsets, wait_for_gaps=self.config.uses_embedded_broker)
            try:
                self._checked_at = self._progressed_at = time.monotonic()
                self._status.set_reading()
                while not self._closing.is_set():
                    if self._reached_stop_offsets():
                        self._flush_merge()
                        break
                    self._poll_once(consumer, admin, topic)
            finally:
                consumer.close()

    def _wait_without_partitions(self, admin: Admin, topic: Topic) -> None:
        """Wait until closed, or until the topic has changed; return at once if reading was to stop at an end."""
        self._status.set_reading()
        while self.stop_offsets is None and self._stop_requested_at is None:
            if self._closing.wait(IDLE_TOPIC_CHECK_SECONDS):
                return
            self._check_topic(admin, topic)

    def _poll_once(self, consumer: PartitionConsumer, admin: Admin, topic: Topic) -> None:
        """1. Fetch. 2. Check that the topic is the same. 3. Update its ends. 4. Decode. 5. Queue by event time."""
        try:
            raws = consumer.poll(POLL_SECONDS)
        except OffsetOutOfRangeError as error:
            self._check_topic(admin, topic)
            self._reset_positions(admin, topic, str(error), error.partitions or self.share.of(topic.partitions))
            raise TopicChangedError("the positions were reset") from None
        # the check may be skipped only where no broker could have refilled a re-created topic this far since the last
        is_in_reach = any(self._offset(raw.partition) < REFILL_RECORDS for raw in raws)
        check_interval = TOPIC_CHECK_SECONDS if raws else IDLE_TOPIC_CHECK_SECONDS
        self._check_topic(admin, topic, after_seconds=0.0 if is_in_reach else check_interval)
        self._update_ends(consumer, admin, topic)
        for raw in raws:
            self._decode(raw, topic)
        behind = {partition for partition in self.share.of(topic.partitions) if self._is_behind(partition)}
        if raws or not behind:
            self._progressed_at = time.monotonic()
        elif time.monotonic() - self._progressed_at > MAX_HOLD_SECONDS:
            behind = set()
        for columns in self._merge.take(behind):
            while not self._queue.put(columns, FULL_CHECK_SECONDS):
                self._list_ends(admin, topic)
        self._note_queued()
        consumer.pause(self._merge.partitions_ahead() & set(self.share.of(topic.partitions)))
        self._report_offsets(admin)

    def _decode(self, raw: RawRecords, topic: Topic) -> None:
        """Decode records into the merge and move the position past them."""
        if self.stop_offsets is not None:
            raw = raw.before(self.stop_offsets.get(raw.partition, raw.end))
        if raw.end <= self._offset(raw.partition):
            return
        columns = self._decode_when_possible(raw, topic)
        num_bytes = int(np.maximum(raw.value_length_N, 0).sum()) + 64 * len(raw)
        self._merge.add(raw.partition, columns, num_bytes)
        self.positions[raw.partition] = Position(topic.id, raw.end)
        if len(raw):
            self._last_record_at[raw.partition] = time.monotonic()

    def _decode_when_possible(self, raw: RawRecords, topic: Topic) -> Columns:
        """Decode records as soon as what their format needs, such as a schema from a registry, is to be had.

        Waits here, where the records are in memory and no position has moved. RetriableError once closed.
        """
        while True:
            try:
                columns = self._decoder.decode(raw, topic.id)
            except RetriableError as error:
                self._status.set_waiting(str(error))
                if self._closing.wait(self._format_backoff.fail()):
                    raise
            else:
                self._format_backoff.succeed()
                self._status.set_reading()
                return columns

    def _check_topic(self, admin: Admin, topic: Topic, *, after_seconds: float = 0.0) -> None:
        """Check that the topic is still the one being read, unless that was checked within `after_seconds`."""
        if (now := time.monotonic()) - self._checked_at < after_seconds:
            return
        found = admin.topic(topic.name)
        self._checked_at = now
        if found is None:
            raise TopicNotFoundError(f"the topic {topic.name!r} has been deleted: create it again")
        if found != topic:
            raise TopicChangedError(f"the topic {topic.name!r} has changed")

    def _update_ends(self, consumer: PartitionConsumer, admin: Admin, topic: Topic) -> None:
        """Take over where the partitions end, once all of them have been fetched from."""
        fetched, partitions = consumer.ends, self.share.of(topic.partitions)
        if not fetched.keys() >= set(partitions):
            return
        ends = {partition: fetched[partition].offset for partition in partitions}
        requested_at = min(fetched[partition].requested_at for partition in partitions)
        for partition, end in ends.items():
            if end < self.positions[partition].offset:
                self._check_topic(admin, topic)
                reason = f"{partition} ends at {end}, before the position {self.positions[partition].offset}"
                self._reset_positions(admin, topic, reason, [partition])
                raise TopicChangedError("the positions were reset")
        self.ends, self._ends_requested_at = ends, requested_at
        requested_ms = int((time.time() - (time.monotonic() - requested_at)) * 1000)
        self._freshness.observe_ends(
            requested_ms, {partition: Position(topic.id, end) for partition, end in ends.items()}
        )
        if self._stop_requested_at is not None and requested_at >= self._stop_requested_at:
            self.stop_offsets, self._stop_requested_at = dict(ends), None

    def _list_ends(self, admin: Admin, topic: Topic) -> None:
        """Ask where the partitions end, while the queue is full and nothing is fetched: the lag grows meanwhile."""
        try:
            listed = admin.listed_ends(topic)
        except StreamError:
            return  # the next fetch says why
        self.ends = {partition: max(end, listed.get(partition, 0)) for partition, end in self.ends.items()}

    def _resolve_positions(self, admin: Admin, topic: Topic) -> None:
        """Give every partition a position: its own, the beginning where it has none, a reset one where it must be."""
        beginnings = admin.beginning_offsets(topic)
        outdated = [
            partition
            for partition in self.share.of(topic.partitions)
            if topic.id and partition in self.positions and self.positions[partition].topic_id not in ("", topic.id)
        ]
        if outdated:
            self._reset_positions(admin, topic, f"the topic {topic.name!r} has been re-created", outdated)
        for partition in self.share.of(topic.partitions):
            begin = beginnings[partition]
            offset = self.positions[partition].offset if partition in self.positions else begin
            self.positions[partition] = Position(topic.id, offset)
            if offset < begin:
                reason = f"{partition} begins at {begin}, after the position {offset}"
                self._reset_positions(admin, topic, reason, [partition])

    def _reset_positions(self, admin: Admin, topic: Topic, reason: str, partitions: Collection[Partition]) -> None:
        """Start these partitions over at the beginning or the end. Raises TopicResetError if the settings say so."""
        beginnings = admin.beginning_offsets(topic)
        num_deleted = sum(
            max(0, beginnings[partition] - self.positions[partition].offset)
            for partition in partitions
            if partition in self.positions and self.positions[partition].topic_id in ("", topic.id)
        )
        num_again = sum(
            max(0, min(beginnings[partition], self._read_before.get(partition, 0)) - self.positions[partition].offset)
            for partition in partitions
            if partition in self.positions and self.positions[partition].topic_id in ("", topic.id)
        )
        if num_deleted:
            reason += f": {num_deleted:,} records were deleted before they were read"
        if num_again:
            reason += f" again, {num_again:,} of them were read once: what waited among them for labels is lost"
        if self.config.on_reset == "fail" and not self.config.uses_embedded_broker:
            raise TopicResetError(
                f'{reason}: set [source] on_reset = "earliest" (learn everything the topic holds) '
                'or "latest" (only new records)'
            )
        self._flush_merge()  # what was read before precedes the first record after the reset
        starts_at_end = self.config.on_reset == "latest" and not self.config.uses_embedded_broker
        offsets = admin.end_offsets(topic) if starts_at_end else beginnings
        if set(partitions) == set(self.share.of(topic.partitions)):
            self.positions.clear()
        self.positions.update({partition: Position(topic.id, offsets[partition]) for partition in partitions})
        self.ends = {}
        if self.stop_offsets is not None:
            self.stop_offsets, self._stop_requested_at = None, time.monotonic()
        starts = ", ".join(f"{partition} from {offsets[partition]}" for partition in partitions)
        self._status.count_reset(f"{reason}; reading {starts}", num_deleted)

    def _report_offsets(self, admin: Admin) -> None:
        is_due = time.monotonic() - self._reported_at >= REPORT_SECONDS
        if self._offsets_to_report is None or self.config.group is None or not is_due:
            return
        self._reported_at = time.monotonic()
        offsets, self._offsets_to_report = self._offsets_to_report, None
        try:
            admin.report_offsets(self.config.group, offsets)
        except RetriableError as error:
            logger.info("offsets not reported yet", extra={"group": self.config.group, "reason": str(error)})
            self._offsets_to_report = self._offsets_to_report or offsets
        except StreamError as error:
            logger.warning("offsets not reported: %s", error, extra={"group": self.config.group})

    def _offset(self, partition: Partition) -> int:
        position = self.positions.get(partition)
        return 0 if position is None else position.offset

    def _is_behind(self, partition: Partition) -> bool:
        end = self.ends.get(partition)
        if self.stop_offsets is not None and partition in self.stop_offsets:
            stop = self.stop_offsets[partition]
            end = stop if end is None else min(stop, end)
        return end is None or self._offset(partition) < end

    def _reached_stop_offsets(self) -> bool:
        stop = self.stop_offsets
        return stop is not None and all(self._offset(partition) >= offset for partition, offset in stop.items())

    def _flush_merge(self) -> None:
        """Queue everything that waits in the merge."""
        for columns in self._merge.take(()):
            self._queue.put(columns)
        self._note_queued()

    def _note_queued(self) -> None:
        """Note how far everything is in the queue."""
        if not self._merge:
            self.queued_positions = dict(self.positions)
