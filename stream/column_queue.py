"""From the decoder to the trainer: partitions merged by event time, then a queue that is bounded in bytes.

The merge is for catching up; once the reader has caught up, everything passes at once. kafka-python returns one
partition after another. Without the merge the event clock, which follows the slowest partition, would stop while one of
them runs years ahead. Knows no Kafka.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
                stop = head.columns.record_end(min(max(start + int(younger_N[0]), start + self.slice_rows), stop))
        if stop == len(head.columns):
            queue.popleft()
        head.num_taken = stop
        return head.columns.slice(start, stop)


class ColumnQueue:
    """First in, first out. Ends once, with or without an error; what is queued by then can still be taken."""

    def __init__(self, max_bytes: int, *, on_change: Callable[[], object] | None = None) -> None:
        """`on_change` is called after each change that lets `take` return something else."""
        self.max_bytes = max_bytes
        self._on_change = on_change or (lambda: None)
        self.num_bytes = self.num_rows = 0  # of the queued columns
        self._changed = threading.Condition()
        self._queued: deque[tuple[Columns, int]] = deque()
        self._is_ended = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, columns: Columns, timeout_seconds: float | None = None) -> bool:
        """Append; blocks while there is no room, and returns False if there is none within the time.

        An empty or ended queue takes columns of any size.
        """
        size = columns_bytes(columns)
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: not self._queued or self.num_bytes + size <= self.max_bytes or self._is_ended, timeout_seconds
            )
            if not has_room:
                return False
            self._queued.append((columns, size))
            self.num_bytes += size
            self.num_rows += len(columns)
            self._changed.notify_all()
        self._on_change()
        return True

    def take(self, num_bytes: int, timeout_seconds: float) -> list[Columns]:
        """About `num_bytes` of columns; [] when none arrive within the time, or after the end.

        Raises the error that the queue ended with, once everything before it has been taken.
        """
        taken: list[Columns] = []
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._is_ended, timeout_seconds)
            if not self._queued and self._error is not None:
                raise self._error
            while self._queued and num_bytes > 0:
                columns, size = self._queued.popleft()
                num_bytes -= size
                self.num_bytes -= size
                self.num_rows -= len(columns)
                taken.append(columns)
            self._changed.notify_all()
        return taken

    def first(self) -> Columns | None:
        """What `take` returns first; None while nothing is queued."""
        with self._changed:
            return self._queued[0][0] if self._queued else None

    def end(self, error: BaseException | None = None) -> None:
        """Announce that nothing more will come; of several errors the first counts."""
        with self._changed:
            self._is_ended, self._error = True, self._error or error
            self._changed.notify_all()
        self._on_change()


def columns_bytes(columns: Columns) -> int:
    """The approximate memory of columns, in bytes."""
    features = columns.features
    arrays: list[npt.NDArray[Any]] = [
        features.categorical_NC,
        features.dense_NF,
        columns.labels_NL,
        columns.weights_N,
        columns.event_ms_N,
    ]
    arrays += [columns.record_ms_N, columns.partition_N, columns.offset_N]
    arrays += [] if features.bias_NB is None else [features.bias_NB]
    arrays += [array for ragged in features.lists for array in (ragged.ids_M, ragged.offsets)]
    arrays += [ragged.weights_M for ragged in features.lists if ragged.weights_M is not None]
    raw_bytes = 0 if columns.raw is None else len(columns.raw.buffer)
    dead_bytes = sum(len(letter.value or b"") + len(letter.key or b"") + 200 for letter in columns.dead_letters)
    return sum(array.nbytes for array in arrays) + raw_bytes + dead_bytes + 80 * len(columns.id_strings.strings) + 1000
