"""Where a reader stands in a topic, said so that a topic made anew is told from the old one."""

from collections.abc import Mapping
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


class Position(NamedTuple):
    """The next offset to read, and the id of the topic that it is an offset of ("" = unknown)."""

    topic_id: str
    offset: int

    def matches_topic(self, topic_id: str) -> bool:
        """Whether it is, as far as is known, of this topic: else the offsets of one mean nothing to the other."""
        return self.topic_id == topic_id or "" in (self.topic_id, topic_id)


def positions_from_meta(positions: Mapping[str, StreamPosition]) -> dict[Partition, Position]:
    """As a version tells them."""
    return {Partition.parse(name): Position(at["topic_id"], at["offset"]) for name, at in positions.items()}


def positions_to_meta(positions: Mapping[Partition, Position]) -> dict[str, StreamPosition]:
    """For a version's meta."""
    return {
        str(partition): StreamPosition(topic_id=position.topic_id, offset=position.offset)
        for partition, position in positions.items()
    }
