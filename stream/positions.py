"""Partitions, and positions in them, which name the topic's id: a re-created topic has another one.

A history's files are one partition, whose offsets are the numbers of their rows. The topic id of a position in it is
"ID/PLACE": the history, then the file in which that row is. Positions in two files are positions of one history.
"""

from collections.abc import Iterable, Mapping
from math import gcd
from typing import NamedTuple

from springtide_client.format.records import StreamPosition


class Partition(NamedTuple):
    """A partition of a topic; written "topic/0" in statuses and versions."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    @staticmethod
    def parse(name: str) -> "Partition":
        """Parse "topic/0"; the topic's name may contain slashes. Raises ValueError without a number at the end."""
        topic, _, number = name.rpartition("/")
        return Partition(topic, int(number))


HISTORY = Partition("[history]", 0)  # no topic can have this name
FINISHED = "finished"  # the place behind all files


class Position(NamedTuple):
    """The next offset to read, and the id of the topic that it belongs to ("" = unknown)."""

    topic_id: str
    offset: int

    def matches_topic(self, topic_id: str) -> bool:
        """Return False if the position belongs to another topic, where the offset means nothing; unknown ids match."""
        return "" in (self.topic_id, topic_id) or self.topic_id.partition("/")[0] == topic_id.partition("/")[0]

    @property
    def is_finished(self) -> bool:
        """True behind the last row of a history: nothing follows there."""
        return self.topic_id.partition("/")[2] == FINISHED


class PartitionShare(NamedTuple):
    """Which partitions of a topic one of R readers reads: those whose number leaves its rank when divided by R."""

    rank: int = 0
    num_ranks: int = 1

    def holds(self, partition: Partition) -> bool:
        """Return True if this reader reads the partition; partitions that are added later change nothing."""
        return partition.number % self.num_ranks == self.rank

    def meets(self, other: "PartitionShare") -> bool:
        """Return True if some number of a partition is in both shares."""
        return (self.rank - other.rank) % gcd(self.num_ranks, other.num_ranks) == 0

    def of(self, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
        """Return those of the partitions that this reader reads, in their order."""
        return tuple(partition for partition in partitions if self.holds(partition))


ALL_PARTITIONS = PartitionShare()


def positions_from_meta(positions: Mapping[str, StreamPosition]) -> dict[Partition, Position]:
    """The positions of a version's meta."""
    return {Partition.parse(name): Position(at["topic_id"], at["offset"]) for name, at in positions.items()}


def positions_to_meta(positions: Mapping[Partition, Position]) -> dict[str, StreamPosition]:
    """Positions as a version's meta holds them."""
    return {
        str(partition): StreamPosition(topic_id=position.topic_id, offset=position.offset)
        for partition, position in positions.items()
    }
