"""One connection of a source: from the first look at the topic until something is lost. Knows no queue."""

import logging
import time
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from stream.columns import Columns
from stream.config import SourceConfig
from stream.errors import (
    BrokerUnavailableError,
    OffsetOutOfRangeError,
    RetriableError,
    StreamError,
    TopicNotFoundError,
    TopicResetError,
)
from stream.flow.event_time_merge import EventTimeMerge
from stream.kafka.admin import Admin, Topic, unreachable_reason
from stream.kafka.consumer import PartitionConsumer
from stream.kafka.offset_gaps import cut
from stream.positions import Partition, Position
from stream.records import RawRecords

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
# the topic's id is looked at after a fetch: what was fetched before a look is of the topic the look shows
LOOK_SECONDS, IDLE_LOOK_SECONDS = 0.02, 0.5
REFILL_RECORDS = 200_000  # more than a partition can take within LOOK_SECONDS: 10 million records a second
HOLD_SECONDS = 2.0  # how long a silent partition holds the others back
REPORT_SECONDS = 1.0


class TopicChangedError(RetriableError):
    """Begin a new session at once."""


class Owner(Protocol):
    """What a session tells its source."""

    @property
    def closing(self) -> bool: ...
    def is_reading(self) -> None: ...
    def decode(self, raw: RawRecords, topic_id: str) -> Columns: ...
    def deliver(self, columns: Columns) -> None: ...
    def mark(self, wall_ms: int, ends: Mapping[Partition, Position]) -> None: ...
    def topic_was_reset(self, why: str) -> None: ...


class ConsumerLoop:
    """Reads on from `positions`, which outlive the connection. run() returns when closed or finished, else raises."""

    def __init__(self, config: SourceConfig, positions: dict[Partition, Position], owner: Owner) -> None:
        self.config = config
        self.positions = positions  # the next offset to fetch; what was fetched is in the merge or with the owner
        self.owner = owner
        self.start_positions: dict[Partition, Position] = {}  # where reading began in the topic as it is
        self.ends: dict[Partition, int] = {}
        self.stop_at: dict[Partition, int] | None = None
        self.stop_requested_at: float | None = None
        self.offsets_to_report: dict[Partition, int] | None = None
        self.merge = EventTimeMerge()
        self._last_record: dict[Partition, float] = {}
        self._looked = self._progressed = self._reported = 0.0

    def run(self) -> None:
        """1. Find the broker. 2. Find the topic. 3. Settle where to begin. 4. Read until something ends it."""
        kafka = self.config.kafka_config()
        if reason := unreachable_reason(kafka.bootstrap_servers):
            raise BrokerUnavailableError(f"Kafka: {reason}: start the broker, or correct [source] bootstrap_servers")
        with Admin(kafka) as admin:
            topic = admin.require_topic(self.config.topic)
            self._settle(admin, topic)
            if self.start_positions.keys() != set(topic.partitions) or any(
                b.topic_id != topic.id for b in self.start_positions.values()
            ):
                self.start_positions = dict(self.positions)
            offsets = {partition: self.positions[partition].offset for partition in topic.partitions}
            reader = PartitionConsumer(kafka, offsets, whole=self.config.uses_embedded_broker)
            try:
                self._looked = self._progressed = time.monotonic()
                self.owner.is_reading()
                while not self.owner.closing and not self._finished(topic):
                    self._pass(reader, admin, topic)
            finally:
                reader.close()

    def idle(self, seconds: float) -> set[Partition]:
        """Partitions at their end without a record for so long."""
        now = time.monotonic()
        return {
            partition
            for partition, end in self.ends.items()
            if self._offset(partition) >= end and now - self._last_record.get(partition, 0.0) > seconds
        }

    def _pass(self, reader: PartitionConsumer, admin: Admin, topic: Topic) -> None:
        """1. Fetch. 2. Make sure it is still the same topic. 3. Learn its ends. 4. Decode. 5. Hand on in order."""
        try:
            raws = reader.poll(POLL_SECONDS)
        except OffsetOutOfRangeError as error:
            self._look(admin, topic)
            self._reset(admin, topic, str(error), error.partitions or topic.partitions)
            raise TopicChangedError("the positions begin anew") from None
        # a look may be spared only where no broker could have refilled a topic made anew so far since the last one
        in_reach = any(self._offset(raw.partition) < REFILL_RECORDS for raw in raws)
        self._look(admin, topic, after_seconds=0.0 if in_reach else LOOK_SECONDS if raws else IDLE_LOOK_SECONDS)
        self._learn_ends(reader, admin, topic)
        for raw in raws:
            self._take(raw, topic)
        behind = {partition for partition in topic.partitions if self._behind(partition)}
        if raws or not behind:
            self._progressed = time.monotonic()
        elif time.monotonic() - self._progressed > HOLD_SECONDS:
            behind = set()
        for columns in self.merge.take(behind):
            self.owner.deliver(columns)
        reader.pause(self.merge.partitions_ahead() & set(topic.partitions))
        self._report(admin)

    def _take(self, raw: RawRecords, topic: Topic) -> None:
        if self.stop_at is not None:
            raw = cut(raw, self.stop_at.get(raw.partition, raw.end))
        if raw.end <= self._offset(raw.partition):
            return
        columns = self.owner.decode(raw, topic.id)
        num_bytes = int(np.maximum(raw.value_length_N, 0).sum()) + 64 * len(raw)
        self.merge.add(raw.partition, columns, num_bytes)
        self.positions[raw.partition] = Position(topic.id, raw.end)
        if len(raw):
            self._last_record[raw.partition] = time.monotonic()

    def _look(self, admin: Admin, topic: Topic, *, after_seconds: float = 0.0) -> None:
        """Make sure the topic is the one that is read, if the last look is so long ago."""
        if (now := time.monotonic()) - self._looked < after_seconds:
            return
        seen = admin.topic(topic.name)
        self._looked = now
        if seen is None:
            raise TopicNotFoundError(f"the topic {topic.name!r} has been deleted: create it again")
        if seen != topic:
            raise TopicChangedError(f"the topic {topic.name!r} has changed")

    def _learn_ends(self, reader: PartitionConsumer, admin: Admin, topic: Topic) -> None:
        told = reader.ends
        if not told.keys() >= set(topic.partitions):
            return
        ends = {partition: told[partition][0] for partition in topic.partitions}
        asked = min(told[partition][1] for partition in topic.partitions)
        for partition, end in ends.items():
            if end < self.positions[partition].offset:
                self._look(admin, topic)
                why = f"{partition} ends at {end}, before the position {self.positions[partition].offset}"
                self._reset(admin, topic, why, [partition])
                raise TopicChangedError("the positions begin anew")
        self.ends = ends
        asked_ms = int((time.time() - (time.monotonic() - asked)) * 1000)
        self.owner.mark(asked_ms, {partition: Position(topic.id, end) for partition, end in ends.items()})
        if self.stop_requested_at is not None and asked >= self.stop_requested_at:
            self.stop_at, self.stop_requested_at = dict(ends), None

    def _settle(self, admin: Admin, topic: Topic) -> None:
        """Positions for every partition: where they were, at the beginning where there are none, anew if they must."""
        beginnings = admin.beginning_offsets(topic)
        stale = [
            partition
            for partition in topic.partitions
            if topic.id and partition in self.positions and self.positions[partition].topic_id not in ("", topic.id)
        ]
        if stale:
            self._reset(admin, topic, f"the topic {topic.name!r} has been made anew", stale)
        for partition in topic.partitions:
            begin = beginnings[partition]
            offset = self.positions[partition].offset if partition in self.positions else begin
            self.positions[partition] = Position(topic.id, offset)
            if offset < begin:
                self._reset(admin, topic, f"{partition} begins at {begin}, after the position {offset}", [partition])

    def _reset(self, admin: Admin, topic: Topic, why: str, partitions: Collection[Partition]) -> None:
        """Begin these anew, where the settings allow it."""
        if self.config.on_reset == "fail" and not self.config.uses_embedded_broker:
            raise TopicResetError(
                f'{why}: set [source] on_reset = "earliest" (learn all that is there) or "latest" (only what comes)'
            )
        # what was read before comes before the first record after it
        for columns in self.merge.take(()):
            self.owner.deliver(columns)
        latest = self.config.on_reset == "latest" and not self.config.uses_embedded_broker
        offsets = admin.end_offsets(topic) if latest else admin.beginning_offsets(topic)
        if set(partitions) == set(topic.partitions):
            self.positions.clear()
        self.positions.update({partition: Position(topic.id, offsets[partition]) for partition in partitions})
        self.ends = {}
        if self.stop_at is not None:
            self.stop_at, self.stop_requested_at = None, time.monotonic()
        told = ", ".join(f"{partition} from {offsets[partition]}" for partition in partitions)
        self.owner.topic_was_reset(f"{why}; reading {told}")

    def _report(self, admin: Admin) -> None:
        if (
            self.offsets_to_report is None
            or self.config.group is None
            or time.monotonic() - self._reported < REPORT_SECONDS
        ):
            return
        self._reported = time.monotonic()
        positions, self.offsets_to_report = self.offsets_to_report, None
        try:
            admin.report_offsets(self.config.group, positions)
        except StreamError as error:
            logger.info("positions were not reported", extra={"group": self.config.group, "why": str(error)})

    def _offset(self, partition: Partition) -> int:
        position = self.positions.get(partition)
        return 0 if position is None else position.offset

    def _behind(self, partition: Partition) -> bool:
        end = self.ends.get(partition)
        if self.stop_at is not None and partition in self.stop_at:
            end = min(self.stop_at[partition], end if end is not None else self.stop_at[partition])
        return end is None or self._offset(partition) < end

    def _finished(self, topic: Topic) -> bool:
        if self.stop_at is None or any(self._offset(partition) < end for partition, end in self.stop_at.items()):
            return False
        for columns in self.merge.take(()):
            self.owner.deliver(columns)
        return True
