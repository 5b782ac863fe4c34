"""One reading of one topic: the clocks of its partitions, and how far they let time go on."""

from collections.abc import Mapping

from springtide.stream.join.partition_clock import PartitionClock
from springtide.stream.join_state import NO_TIME, PartitionMark
from springtide.stream.positions import Partition, Position


class Cursor:
    """One reading of one topic: its partitions' clocks."""

    def __init__(self, marks: Mapping[str, PartitionMark], slack_ms: int) -> None:
        """`slack_ms`: nothing is released sooner than this after a record of this cursor."""
        self.slack_ms = slack_ms
        self.clocks = {Partition.parse(name): PartitionClock.of(mark) for name, mark in marks.items()}
        self.topic_ids = {Partition.parse(name): mark.topic_id for name, mark in marks.items()}

    @property
    def is_replaying(self) -> bool:
        """True while a partition is read again."""
        return any(clock.is_replaying for clock in self.clocks.values())

    @property
    def reached_ms(self) -> int:
        """Nothing due later can be released because of it. NO_TIME before its first record, or if it is idle."""
        times = [clock.newest_ms for clock in self.clocks.values() if not clock.is_idle]
        return NO_TIME if not times or min(times) == NO_TIME else min(times) + self.slack_ms

    @property
    def positions(self) -> dict[Partition, Position]:
        """The next offset of each partition."""
        return {
            partition: Position(self.topic_ids.get(partition, ""), clock.next_offset)
            for partition, clock in self.clocks.items()
        }

    def marks(self, oldest_ms: int) -> dict[str, PartitionMark]:
        """What a version says, if nothing from before `oldest_ms` is needed."""
        return {
            str(partition): clock.to_mark(self.topic_ids.get(partition, ""), oldest_ms)
            for partition, clock in sorted(self.clocks.items())
        }
