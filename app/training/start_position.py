"""Where in the stream to begin if that is not where the log ends: `--from-offset`, `--from-timestamp`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from springtide.app.errors import UserError
from springtide.app.training.state.stream_state import StreamState
from springtide.stream.config import SourceConfig
from springtide.stream.join.config import JoinPlan, cursor_slacks
from springtide.stream.kafka.admin import Admin, Topic
from springtide.stream.kafka.range_reader import scan_offsets_for_time
from springtide.stream.positions import HISTORY, Partition, Position

PLACES = ("earliest", "latest")
MIN_MS, MAX_MS = 315_532_800_000, 7_258_118_400_000  # a number outside is in seconds, or a date without dashes


@dataclass(frozen=True)
class StartPosition:
    """A place in every partition ("earliest", "latest", or a record time in ms), or offsets in some of them."""

    place: str | int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)  # by "topic/0"

    @staticmethod
    def parse(from_offsets: list[str], from_timestamp: str | None) -> "StartPosition | None":
        """Parse the command-line options; None if there are none. UserError says how to write them."""
        if from_offsets and from_timestamp is not None:
            raise UserError("--from-offset and --from-timestamp exclude each other: keep one")
        if from_timestamp is not None:
            return StartPosition(place=parse_timestamp_ms(from_timestamp))
        if not from_offsets:
            return None
        if places := [text for text in from_offsets if text in PLACES]:
            if len(from_offsets) > 1:
                raise UserError(f"--from-offset {places[0]} stands for all partitions: leave out the others")
            return StartPosition(place=places[0])
        offsets: dict[str, int] = {}
        for text in from_offsets:
            partition, equals, offset = text.partition("=")
            topic, _, number = partition.rpartition("/")
            if not (equals and topic and is_whole_number(number) and is_whole_number(offset)):
                raise UserError(
                    f"--from-offset {text}: write earliest, latest, or TOPIC/PARTITION=OFFSET: clicks/0=123"
                )
            if partition in offsets:
                raise UserError(f"--from-offset names {partition} twice: keep one")
            offsets[partition] = int(offset)
        return StartPosition(offsets=offsets)

    def resolve(self, source: SourceConfig, positions: Mapping[Partition, Position]) -> dict[Partition, Position]:
        """Return the positions; UserError if the topic does not hold them, StreamError without a broker."""
        with Admin(source.kafka_config()) as admin:
            topic = admin.require_topic(source.topic)
            begins, ends = admin.beginning_offsets(topic), admin.end_offsets(topic)
            if isinstance(self.place, int):
                # the embedded broker finds whole batches only; what it holds is little enough to scan
                hints = begins if source.uses_embedded_broker else admin.offsets_for_time(topic, self.place, ends)
                found = scan_offsets_for_time(source.kafka_config(), hints, ends, self.place)
            elif self.place is not None:
                found = begins if self.place == "earliest" else ends
            else:
                found = self._named(topic, begins, ends)
        return {partition: Position(topic.id, offset) for partition, offset in found.items()}

    def _named(
        self, topic: Topic, begins: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        by_name = {str(partition): partition for partition in topic.partitions}
        for name, offset in self.offsets.items():
            partition = by_name.get(name)
            if partition is None:
                raise UserError(f"--from-offset {name}={offset}: there is no such partition, only {', '.join(by_name)}")
            begin, end = begins[partition], ends[partition]
            if not begin <= offset <= end:
                raise UserError(
                    f"--from-offset {name}={offset}: the partition holds the offsets {begin} to {end - 1}"
                    if begin < end
                    else f"--from-offset {name}={offset}: the partition is empty, the next offset is {end}"
                )
            found[partition] = offset
        return found


def require_same_topic(source: SourceConfig, positions: Mapping[Partition, Position]) -> None:
    """Raise UserError if everything was learned from another topic: where to begin in this one cannot be known."""
    topics = sorted({partition.topic for partition in positions if partition != HISTORY})
    if topics and source.topic not in topics:
        raise UserError(
            f"the log was learned from the topic {', '.join(topics)}, [source] topic is {source.topic}: set it back; "
            "to go on with this topic and keep what is learned, start once with `springtide train --from-offset "
            "earliest` (or latest, or --from-timestamp); to start from scratch, set another [log] path"
        )


def require_same_join(source: SourceConfig, plan: JoinPlan | None, stream: StreamState) -> None:
    """Raise UserError if the log was learned with another join: which impressions are in it could not be known."""
    if not stream.positions:
        return
    before = set() if stream.join is None else stream.join.cursor_names()
    now = set() if plan is None else set(cursor_slacks(source.topic, plan.labels))
    if before != now:
        names = [", ".join(sorted(cursors)) or "none" for cursors in (before, now)]
        raise UserError(
            f"the log was learned with the joins {names[0]}, the configuration has {names[1]} (topics, with "
            "window_seconds or until_seconds in ms, and what `late` makes of the latter): set them back, or set "
            "another [log] path"
        )
    if plan is None or stream.join is None or stream.join.settings is None:
        return
    if changed := stream.join.settings.changed(plan.settings):
        raise UserError(
            f"the log was learned with another [join] {', '.join(changed)}, which decides what the samples are and in "
            "which order they come: set it back, or set another [log] path"
        )


def require_keys_in_one_partition(plan: JoinPlan) -> None:
    """Raise UserError if several ranks would have to find duplicates in each other's partitions."""
    if plan.config.dedupe_seconds > 0 and not plan.config.partitioned_by_key:
        raise UserError(
            "[join] dedupe_seconds with --ranks: a rank finds duplicates in its own partitions alone; if all "
            "impressions of a key are in one partition, set [join] partitioned_by_key = true (`springtide check` tries "
            "it on a sample), else leave out dedupe_seconds or --ranks"
        )


def is_whole_number(text: str) -> bool:
    """Return True for a non-negative whole number."""
    return text.isascii() and text.isdecimal()


def parse_timestamp_ms(text: str) -> int:
    """Parse milliseconds since 1970, or an ISO 8601 time, UTC if it has no zone. Raises UserError."""
    if is_whole_number(text):
        if not MIN_MS <= int(text) < MAX_MS:
            raise UserError(
                f"--from-timestamp {text}: that is not a time in milliseconds since 1970 between 1980 and 2200; "
                "`--from-offset earliest` starts at the oldest record"
            )
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"--from-timestamp {text}: write milliseconds since 1970, or a time such as 2026-05-01T12:00:00Z"
        ) from None
    return max(0, round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))
