"""Where a reader stands in a topic, said so that a topic made anew is told from the old one."""

from typing import NamedTuple


class Position(NamedTuple):
    """The next offset to read, and the id of the topic that it is an offset of ("" = unknown)."""

    topic_id: str
    offset: int
