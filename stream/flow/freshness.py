"""How fresh a reader is: the wall time up to which everything readable has been dealt with. Knows no Kafka."""

from collections import deque
from collections.abc import Mapping

from stream.positions import Partition, Position

MAX_MARKS = 1024


class FreshnessTracker:
    """Remembers where the partitions ended at given times, and answers which of those ends have been passed.

    Sound for any reader: an end is told with the time at which it was asked for, so whoever has passed the end has
    everything that was readable at that time.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, dict[Partition, Position]]] = deque()
        self._passed_ms: int | None = None

    def observe_ends(self, wall_ms: int, ends: Mapping[Partition, Position]) -> None:
        """The partitions ended there when they were asked at that time."""
        if self._marks and identity(self._marks[-1][1]) != identity(ends):
            self._marks.clear()  # the ends of a topic that is no more can never be passed
        if self._marks and self._marks[-1][1] == ends:
            self._marks[-1] = (max(wall_ms, self._marks[-1][0]), dict(ends))
            return
        self._marks.append((wall_ms, dict(ends)))
        if len(self._marks) > MAX_MARKS:
            self._marks = deque(mark for number, mark in enumerate(self._marks) if number % 2 or number > MAX_MARKS - 8)

    def complete_until_ms(self, positions: Mapping[Partition, Position]) -> int | None:
        """The latest time whose ends these positions have passed; None before the first. Positions only grow."""
        passed = None
        while self._marks and covers(positions, self._marks[0][1]):
            passed = self._marks.popleft()
        if passed is not None:
            self._passed_ms = max(passed[0], self._passed_ms or 0)
            # kept, for the time of an unchanged end moves on
            self._marks.appendleft(passed)
        return self._passed_ms


def identity(ends: Mapping[Partition, Position]) -> dict[Partition, str]:
    """Which topic the ends are of."""
    return {partition: end.topic_id for partition, end in ends.items()}


def covers(positions: Mapping[Partition, Position], ends: Mapping[Partition, Position]) -> bool:
    """Whether nothing before the ends is missing; positions in another topic of the same name say nothing."""
    return all(
        partition in positions
        and positions[partition].topic_id == end.topic_id
        and positions[partition].offset >= end.offset
        for partition, end in ends.items()
    )
