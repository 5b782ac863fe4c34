"""Tracks freshness: the wall time up to which every readable record has been processed. Knows no Kafka."""

import threading
from collections import deque
from collections.abc import Mapping

from springtide.stream.positions import Partition, Position

MAX_OBSERVATIONS = 1024


class FreshnessTracker:
    """Remembers where the partitions ended at known times, and reports the latest of those times that was reached.

    Each end is recorded with the time at which it was requested, so that a reader past that end has processed every
    record that was readable then. One thread observes, any thread asks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observations: deque[tuple[int, dict[Partition, Position]]] = deque()  # oldest first
        self._complete_until_ms: int | None = None

    def observe_ends(self, wall_ms: int, ends: Mapping[Partition, Position]) -> None:
        """Record where the partitions ended at `wall_ms`, the time at which the broker was asked."""
        with self._lock:
            observations = self._observations
            if observations and topic_ids(observations[-1][1]) != topic_ids(ends):
                observations.clear()  # the ends of a deleted topic can never be reached
            if observations and observations[-1][1] == ends:
                observations[-1] = (max(wall_ms, observations[-1][0]), dict(ends))
                return
            observations.append((wall_ms, dict(ends)))
            if len(observations) > MAX_OBSERVATIONS:
                # every second one is dropped, except among the newest
                self._observations = deque(
                    kept for n, kept in enumerate(observations) if n % 2 or n > MAX_OBSERVATIONS - 8
                )

    def complete_until_ms(self, positions: Mapping[Partition, Position]) -> int | None:
        """The latest time whose ends these positions have reached; None before the first. Positions must only grow."""
        with self._lock:
            reached = None
            while self._observations and covers(positions, self._observations[0][1]):
                reached = self._observations.popleft()
            if reached is not None:
                self._complete_until_ms = max(reached[0], self._complete_until_ms or 0)
                # kept, because while the end does not change its time moves on
                self._observations.appendleft(reached)
            return self._complete_until_ms


def topic_ids(ends: Mapping[Partition, Position]) -> dict[Partition, str]:
    """The id of the topic that each end belongs to."""
    return {partition: end.topic_id for partition, end in ends.items()}


def covers(positions: Mapping[Partition, Position], ends: Mapping[Partition, Position]) -> bool:
    """Return True if every end is reached; a position in another topic of the same name does not count."""
    return all(
        partition in positions
        and positions[partition].topic_id == end.topic_id
        and positions[partition].offset >= end.offset
        for partition, end in ends.items()
    )
