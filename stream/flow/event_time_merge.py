"""Partitions merged by event time while catching up; in step with the present, everything passes at once.

kafka-python drains one partition after another: without this the event clock, which is the slowest partition's, would
stand still while one of them runs years ahead. Knows no Kafka.
"""

# N rows of one Columns
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from stream.batcher import positions_after
from stream.columns import Columns
from stream.positions import Partition
from stream.slices import slice_features


@dataclass
class QueuedColumns:
    """Columns of one partition of which some rows may have been handed on."""

    columns: Columns
    num_bytes: int
    taken: int = 0


class EventTimeMerge:
    """Hands on the partition whose next row is the oldest, a slice at a time."""

    def __init__(self, *, slice_rows: int = 512, ahead_bytes: int = 8 << 20) -> None:
        """A partition with more than `ahead_bytes` waiting is ahead; slices shorter than `slice_rows` are not made."""
        self.slice_rows = slice_rows
        self.ahead_bytes = ahead_bytes
        self._waiting: dict[Partition, deque[QueuedColumns]] = {}

    def __len__(self) -> int:
        """How many columns wait."""
        return sum(len(queue) for queue in self._waiting.values())

    def add(self, partition: Partition, columns: Columns, num_bytes: int) -> None:
        """Columns that hold rows of this partition only."""
        self._waiting.setdefault(partition, deque()).append(QueuedColumns(columns, num_bytes))

    def partitions_ahead(self) -> set[Partition]:
        """The partitions that should be read no further for now."""
        return {
            partition
            for partition, queue in self._waiting.items()
            if sum(waiting.num_bytes for waiting in queue) > self.ahead_bytes
        }

    def take(self, behind: Collection[Partition]) -> list[Columns]:
        """What may be handed on, while `behind` are the partitions that still have older records to send."""
        taken: list[Columns] = []
        while True:
            heads = {partition: queue[0] for partition, queue in self._waiting.items() if queue}
            if not heads or any(partition not in heads for partition in behind):
                return taken
            times = {partition: next_event_ms(head) for partition, head in heads.items()}
            oldest = min(times, key=lambda partition: (times[partition], partition))
            others = [event_ms for partition, event_ms in times.items() if partition != oldest]
            taken.append(self._slice(oldest, min(others) if others else None))

    def _slice(self, partition: Partition, limit_ms: float | None) -> Columns:
        """The first columns of a partition, up to the first row that is younger than the limit."""
        queue = self._waiting[partition]
        head = queue[0]
        start, stop = head.taken, len(head.columns)
        if limit_ms is not None:
            younger_N = np.flatnonzero(head.columns.event_ms_N[start:] > limit_ms)
            if len(younger_N):
                stop = min(max(start + int(younger_N[0]), start + self.slice_rows), stop)
        if stop == len(head.columns):
            queue.popleft()
        head.taken = stop
        return slice_columns(head.columns, start, stop)


def next_event_ms(waiting: QueuedColumns) -> float:
    """The event time of the next row; columns without rows hold nobody up."""
    columns = waiting.columns
    return float(columns.event_ms_N[waiting.taken]) if waiting.taken < len(columns) else float("-inf")


def slice_columns(columns: Columns, start: int, stop: int) -> Columns:
    """Rows start to stop of one partition's columns; dead letters and the end go with the rows before them.

    Texts go with every slice: they may be told more than once, but never too late.
    """
    if start == 0 and stop == len(columns):
        return columns
    end = positions_after(columns, start, stop)
    begin = positions_after(columns, 0, start) if start else {}
    return replace(
        columns,
        features=slice_features(columns.features, start, stop),
        labels_NL=columns.labels_NL[start:stop],
        weights_N=columns.weights_N[start:stop],
        event_ms_N=columns.event_ms_N[start:stop],
        record_ms_N=columns.record_ms_N[start:stop],
        partition_N=columns.partition_N[start:stop],
        offset_N=columns.offset_N[start:stop],
        dead_letters=tuple(
            letter
            for letter in columns.dead_letters
            if begin.get(letter.partition, 0) <= letter.offset < end.get(letter.partition, 0)
        ),
        end_offsets=end,
    )
