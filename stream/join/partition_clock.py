"""How far a cursor has read one partition, how late its records are, and from where to read it again."""

# N records
from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from springtide.stream.join_state import NO_TIME, PartitionMark
from springtide_client.array_types import BoolArray, Int64Array

POINT_RECORDS, POINT_MS = 1024, 10_000  # at most, between two offsets from which a partition may be read again


@dataclass
class PartitionClock:
    """The newest event time of a partition, by its own records alone: so what is late depends on nothing else."""

    mark: PartitionMark  # where reading began
    newest_ms: int = NO_TIME
    next_offset: int = 0
    is_idle: bool = False
    has_begun: bool = False  # a record was passed since the start
    floors: dict[int, int] = field(default_factory=dict)
    points: deque[tuple[int, int]] = field(default_factory=deque)  # (offset, newest before it), ascending

    @staticmethod
    def of(mark: PartitionMark) -> "PartitionClock":
        """Begin where a version says, or at an offset that no version knows (next_offset = replay_offset)."""
        return PartitionClock(
            mark,
            mark.replay_newest_ms,
            mark.replay_offset,
            mark.is_idle,
            floors=dict(mark.floors),
            points=deque([(mark.replay_offset, mark.replay_newest_ms)]),
        )

    @property
    def is_replaying(self) -> bool:
        """True while it reads again what the version had read."""
        return self.next_offset < self.mark.next_offset

    def wake(self, floor_ms: int) -> None:
        """The partition comes back from being idle: what it brings from before `floor_ms` less the lateness is late.

        That holds from the next record on that no version knows.
        """
        self.is_idle = False
        self.floors[max(self.next_offset, self.mark.next_offset)] = floor_ms

    def observe(self, offset_N: Int64Array, event_ms_N: Int64Array, end: int, lateness_ms: int) -> BoolArray:
        """Pass records in the order of their offsets, up to the offset `end`. Return which of them are late (N).

        A record is late if it is older than the newest one before it by more than the lateness.
        """
        if not self.has_begun:  # a partition may begin at any offset
            self.has_begun = True
            self.points[0] = int(offset_N[0]) if len(offset_N) else end, self.newest_ms
        before_N = np.empty(len(offset_N), np.int64)  # the newest time before each record
        if len(offset_N):
            before_N[0] = self.newest_ms
            before_N[1:] = event_ms_N[:-1]
            for offset, floor_ms in self.floors.items():
                if self.next_offset <= offset and (n := int(np.searchsorted(offset_N, offset))) < len(offset_N):
                    before_N[n] = max(before_N[n], floor_ms)
            before_N = np.maximum.accumulate(before_N)
            self.newest_ms = max(int(before_N[-1]), int(event_ms_N[-1]))
        self._pass_floors(end)
        self.next_offset = end
        offset, newest_ms = self.points[-1]
        if end - offset >= POINT_RECORDS or self.newest_ms - newest_ms >= POINT_MS:
            self.points.append((end, self.newest_ms))
        late_N: BoolArray = event_ms_N < before_N - lateness_ms
        return late_N

    def skip_to(self, offset: int, *, is_end: bool) -> None:
        """Pass offsets without records. `is_end`: the partition ends there, so what a version had read is gone."""
        if not self.has_begun:
            self.has_begun = True
            self.points[0] = max(offset, self.next_offset), self.newest_ms
        self._pass_floors(offset)
        self.next_offset = max(offset, self.next_offset)
        if is_end and self.is_replaying:
            self.mark = msgspec.structs.replace(self.mark, next_offset=self.next_offset)

    def _pass_floors(self, end: int) -> None:
        """Let the floors before an offset count: one whose record is no sample counts for the next record."""
        passed = [floor_ms for offset, floor_ms in self.floors.items() if self.next_offset <= offset < end]
        self.newest_ms = max([self.newest_ms, *passed])

    def replay_point(self, oldest_ms: int) -> tuple[int, int]:
        """The last noted (offset, newest before it) before which all records are older than this."""
        while len(self.points) > 1 and self.points[1][1] < oldest_ms:
            self.points.popleft()
        return self.points[0]

    @property
    def letters_offset(self) -> int:
        """Up to here its dead letters are in the version that reading began with."""
        return self.mark.known_letters_offset

    def to_mark(self, topic_id: str, oldest_ms: int) -> PartitionMark:
        """What a version says, if nothing from before `oldest_ms` is needed any more."""
        offset, newest_ms = self.replay_point(oldest_ms)
        self.floors = {at: floor_ms for at, floor_ms in self.floors.items() if at >= offset}
        return PartitionMark(
            topic_id=topic_id,
            next_offset=max(self.next_offset, self.mark.next_offset),  # while reading again, what is to be reached
            replay_offset=offset,
            replay_newest_ms=newest_ms,
            is_idle=self.is_idle,
            floors=sorted(self.floors.items()),
            letters_offset=self.mark.letters_offset if self.is_replaying else -1,
        )
