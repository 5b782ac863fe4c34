"""Decides where a history ends and the topic begins, once: the first version that is published holds it.

The seam is an event time. Rows with an earlier one are learned from the files, all others from the topic, so it does
not matter how far the two overlap, nor in which order records lie around the seam. It has to be a time from which on
the topic holds every record, and before which the files hold every row:

- Both hold what is between the time at which the topic begins and the one at which the files end. The middle of it is
  as far as can be from what retention has deleted on one side, and from what the last file lacks on the other.
- A partition of which nothing was deleted has no beginning to stay away from; of one that was, the latest event time
  among its first records is its beginning, and the latest of these is the topic's.
- Where they do not overlap, everything in the files is before the seam, and a gap is possible: see `Coverage.gap`.

The topic is read from its first record on whose own time is at most `max_future_seconds` before the seam. No record
before that one is from after the seam: an event time that is further ahead of the record's own is a dead letter.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from springtide.stream.config import SourceConfig
from springtide.stream.decode.decoder import Decoder
from springtide.stream.errors import HistoryError
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.files import HistoryFile
from springtide.stream.history.times import last_event_ms
from springtide.stream.kafka.admin import Admin, Topic
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import Partition, Position
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

logger = logging.getLogger(__name__)

FIRST_RECORDS = 1_000  # of each partition, whose times say when it begins


class Seam(NamedTuple):
    """Where the files end and the topic begins."""

    until_ms: int | None  # None: not a time; all rows are learned, and all records from the positions on
    positions: dict[Partition, Position]  # where reading of the topic begins; the beginning where there is none


@dataclass(frozen=True)
class Coverage:
    """What files and topic hold, by event time in ms; 0 where nothing has a time."""

    files_end_ms: int
    topic_begin_ms: int
    is_truncated: bool  # the topic has held records that it no longer holds

    @property
    def until_ms(self) -> int:
        """The seam: the middle of what both hold, else the time after the last row."""
        if 0 < self.topic_begin_ms < self.files_end_ms:
            return self.topic_begin_ms + (self.files_end_ms - self.topic_begin_ms + 1) // 2
        return self.files_end_ms + 1

    def gap(self, until_ms: int) -> str:
        """Return what neither files nor topic give with this seam, and what to do; "" if nothing is missing."""
        if until_ms > self.files_end_ms + 1:
            return (
                f"the files end at {format_ms(self.files_end_ms)}, before the seam at {format_ms(until_ms)}: what came "
                "in between is learned from neither; add files, or leave out [history] until"
            )
        if self.is_truncated and until_ms <= self.topic_begin_ms:  # what it lost may be of its first millisecond
            return (
                f"the files are learned up to {format_ms(until_ms)}, and the topic no longer holds all that came "
                f"before {format_ms(self.topic_begin_ms)}: what was in between may be lost; add files that overlap it"
            )
        return ""


def decide_seam(source: SourceConfig, history: HistoryConfig, schema: Schema, files: Sequence[HistoryFile]) -> Seam:
    """Return the seam. StreamError where the topic, the files or the configured offsets do not allow one.

    A topic that does not exist yet holds nothing that the files could hold too.
    """
    with Admin(source.kafka_config()) as admin:
        topic = admin.topic(source.topic)
        if topic is None:
            return Seam(history.until_ms, {})
        begins, ends = admin.beginning_offsets(topic), admin.end_offsets(topic)
        if history.offsets:
            return Seam(None, positions_of(topic, {**begins, **named_offsets(history, topic, begins, ends)}))
        until_ms = history.until_ms
        if until_ms is None:
            coverage = find_coverage(source, schema, files, topic, begins, ends)
            if not coverage.topic_begin_ms or not coverage.files_end_ms:
                return Seam(None, positions_of(topic, begins))
            until_ms = coverage.until_ms
            if gap := coverage.gap(until_ms):
                logger.warning("a gap between history and topic", extra={"reason": gap})
        if source.uses_embedded_broker:
            offsets: Mapping[Partition, int] = begins  # it finds whole batches only; it holds little enough to skip
        else:
            from_ms = max(0, until_ms - int(source.max_future_seconds * 1000))
            offsets = admin.offsets_for_time(topic, from_ms, ends)
        return Seam(until_ms, positions_of(topic, {p: max(begins[p], offset) for p, offset in offsets.items()}))


def topic_coverage(source: SourceConfig, schema: Schema, files: Sequence[HistoryFile]) -> Coverage | None:
    """Return what files and topic hold; None if one of them has no event time. StreamError without a broker."""
    with Admin(source.kafka_config()) as admin:
        topic = admin.require_topic(source.topic)
        begins, ends = admin.beginning_offsets(topic), admin.end_offsets(topic)
    coverage = find_coverage(source, schema, files, topic, begins, ends)
    return coverage if coverage.topic_begin_ms and coverage.files_end_ms else None


def find_coverage(
    source: SourceConfig,
    schema: Schema,
    files: Sequence[HistoryFile],
    topic: Topic,
    begins: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> Coverage:
    """Return what the last file and the first records of each partition say."""
    first, truncated = [], []
    for partition, begin in begins.items():
        times = first_event_times(source, schema, topic, partition, begin, min(begin + FIRST_RECORDS, ends[partition]))
        if times:
            first.append(min(times))
            truncated += [max(times)] if begin else []
    begin_ms = max(truncated) if truncated else min(first, default=0)
    return Coverage(last_event_ms(files, schema), begin_ms, bool(truncated))


def first_event_times(
    source: SourceConfig, schema: Schema, topic: Topic, partition: Partition, begin: int, end: int
) -> list[int]:
    """Return the event times of a partition's records in a range of offsets, of those that have one."""
    decoder, times = Decoder(schema, source), list[int]()
    if begin < end:
        begin_at, end_at = {partition: Position(topic.id, begin)}, {partition: Position(topic.id, end)}
        for raw in read_range(source.kafka_config(), begin_at, end_at):
            times += decoder.decode(raw, wall_ms()).event_ms_N.tolist()
    return [time_ms for time_ms in times if time_ms]


def named_offsets(
    history: HistoryConfig, topic: Topic, begins: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return the configured offsets; HistoryError if the topic does not hold them."""
    by_name = {str(partition): partition for partition in topic.partitions}
    found = {}
    for name, offset in history.offsets.items():
        partition = by_name.get(name)
        if partition is None:
            raise HistoryError(f"[history] offsets: there is no partition {name}, only {', '.join(by_name)}")
        if not begins[partition] <= offset <= ends[partition]:
            raise HistoryError(
                f"[history] offsets: {name} = {offset} is not there: the partition begins at {begins[partition]}, "
                f"and the next offset is {ends[partition]}"
            )
        found[partition] = offset
    return found


def positions_of(topic: Topic, offsets: Mapping[Partition, int]) -> dict[Partition, Position]:
    """Return the offsets as positions in the topic as it is now."""
    return {partition: Position(topic.id, offset) for partition, offset in offsets.items()}


def format_ms(time_ms: int) -> str:
    """Return a time in words."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
