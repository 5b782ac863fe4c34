"""How far the stream is learned: the event clock, by the records' own timestamps, and freshness, by the wall clock.

Knows no Kafka.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping

from springtide.stream.positions import Partition, PartitionShare, Position

IDLE_SECONDS = 2.0  # a partition without a record for so long holds no clock back


class WatermarkClock:
    """The minimum over the partitions of the latest event time learned (their watermarks); it never goes back.

    It is moved by what has been learned, batch by batch, so a replay of the same stream gives the same times.
    Timestamps too far in the future never arrive here: they are dead letters (or one record from the year 3000 would
    expire a table). Whether a partition is idle is decided elsewhere, by wall time. `idle` is part of a version,
    because a replay must not decide it again.
    """

    def __init__(
        self, now_ms: int = 0, watermarks: Mapping[Partition, int] | None = None, idle: Iterable[Partition] = ()
    ) -> None:
        self.now_ms = now_ms
        self.watermarks: dict[Partition, int] = dict(watermarks or {})
        self.idle: set[Partition] = set(idle)

    def observe(self, watermarks: Mapping[Partition, int], *, limit_ms: int | None = None) -> int:
        """Advance by a batch's watermarks, whose partitions are no longer idle; return the time in ms.

        The clock stays at or below `limit_ms`: wall time plus what is allowed to be in the future.
        """
        self.note(watermarks)
        return self.mark_idle((), limit_ms=limit_ms)

    def note(self, watermarks: Mapping[Partition, int]) -> None:
        """Take a batch's watermarks without advancing: where the time is agreed on by several readers."""
        for partition, event_ms in watermarks.items():
            self.watermarks[partition] = max(self.watermarks.get(partition, event_ms), event_ms)
        self.idle -= watermarks.keys()

    def earliest_ms(self, share: PartitionShare | None = None) -> int | None:
        """The least watermark of a share's partitions that are not idle, or of all; None if there is none."""
        active = [p for p in self.watermarks if p not in self.idle and (share is None or share.holds(p))]
        return min(map(self.watermarks.__getitem__, active), default=None)

    def advance_to(self, time_ms: int) -> int:
        """Advance to a time that several readers have agreed on; it never goes back. Return it."""
        self.now_ms = max(self.now_ms, time_ms)
        return self.now_ms

    def mark_idle(self, idle: Iterable[Partition], *, limit_ms: int | None = None) -> int:
        """Let these partitions no longer hold back the others until a record of theirs is learned; return the time.

        They are read to their end and silent, or deleted. Call it right before a version is taken, which records it.
        """
        self.idle |= self.watermarks.keys() & set(idle)
        earliest_ms = self.earliest_ms()
        if earliest_ms is None:
            return self.now_ms
        return self.advance_to(earliest_ms if limit_ms is None else min(earliest_ms, limit_ms))


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
