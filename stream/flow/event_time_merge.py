"""Merges partitions by event time while the reader catches up; once it has caught up, everything passes at once.

kafka-python returns one partition after another. Without the merge the event clock, which follows the slowest
partition, would stop while one of them runs years ahead. Knows no Kafka.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from springtide.stream.columns import Columns
from springtide.stream.positions import Partition


@dataclass
class QueuedColumns:
    """Columns of one partition of which some rows may have been taken."""

    columns: Columns
    num_bytes: int
    num_taken: int = 0

    @property
    def next_event_ms(self) -> float:
        """The event time of the next row; columns without rows hold nothing back."""
        columns = self.columns
        return float(columns.event_ms_N[self.num_taken]) if self.num_taken < len(columns) else float("-inf")


class EventTimeMerge:
    """Returns slices of columns, next from the partition whose next row is the oldest."""

    def __init__(self, *, slice_rows: int = 512, ahead_bytes: int = 8 << 20) -> None:
        """A partition with more than `ahead_bytes` queued is ahead. No slice is shorter than `slice_rows`."""
        self.slice_rows = slice_rows
        self.ahead_bytes = ahead_bytes
        self._queues: dict[Partition, deque[QueuedColumns]] = {}

    def __len__(self) -> int:
        """The number of columns queued."""
        return sum(len(queue) for queue in self._queues.values())

    def add(self, partition: Partition, columns: Columns, num_bytes: int) -> None:
        """Queue columns that hold rows of this partition only."""
        self._queues.setdefault(partition, deque()).append(QueuedColumns(columns, num_bytes))

    def partitions_ahead(self) -> set[Partition]:
        """The partitions that should not be fetched from for now."""
        return {
            partition
            for partition, queue in self._queues.items()
            if sum(queued.num_bytes for queued in queue) > self.ahead_bytes
        }

    def take(self, behind: Collection[Partition]) -> list[Columns]:
        """The columns that may pass while the partitions in `behind` still have records to be fetched.

        Stops where a partition that is behind has nothing queued: its next row may be older.
        """
        taken: list[Columns] = []
        while True:
            heads = {partition: queue[0] for partition, queue in self._queues.items() if queue}
            if not heads or any(partition not in heads for partition in behind):
                return taken
            times = {partition: head.next_event_ms for partition, head in heads.items()}
            oldest = min(times, key=lambda partition: (times[partition], partition))
            others = [event_ms for partition, event_ms in times.items() if partition != oldest]
            taken.append(self._take_slice(oldest, min(others) if others else None))

    def _take_slice(self, partition: Partition, limit_ms: float | None) -> Columns:
        """The first columns of a partition, up to the first row that is younger than the limit."""
        queue = self._queues[partition]
        head = queue[0]
        start, stop = head.num_taken, len(head.columns)
        if limit_ms is not None:
            younger_N = np.flatnonzero(head.columns.event_ms_N[start:] > limit_ms)
            if len(younger_N):
                stop = min(max(start + int(younger_N[0]), start + self.slice_rows), stop)
        if stop == len(head.columns):
            queue.popleft()
        head.num_taken = stop
        return head.columns.slice(start, stop)
