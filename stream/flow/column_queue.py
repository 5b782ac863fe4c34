"""The queue of columns between the reading thread and the trainer, bounded in bytes."""

import threading
from collections import deque
from typing import Any

import numpy.typing as npt

from springtide.stream.columns import Columns


class ColumnQueue:
    """First in, first out. Ends once, with or without an error; what is queued by then can still be taken."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = self.num_rows = 0  # of the queued columns
        self._changed = threading.Condition()
        self._queued: deque[tuple[Columns, int]] = deque()
        self._is_ended = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, columns: Columns) -> None:
        """Append; blocks while there is no room. An empty or ended queue takes columns of any size."""
        size = columns_bytes(columns)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._queued or self.num_bytes + size <= self.max_bytes or self._is_ended
            )
            self._queued.append((columns, size))
            self.num_bytes += size
            self.num_rows += len(columns)
            self._changed.notify_all()

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

    def end(self, error: BaseException | None = None) -> None:
        """Announce that nothing more will come; of several errors the first counts."""
        with self._changed:
            self._is_ended, self._error = True, self._error or error
            self._changed.notify_all()


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
    arrays += [array for ragged in features.lists for array in (ragged.ids_M, ragged.offsets)]
    dead_bytes = sum(len(letter.value or b"") + len(letter.key or b"") + 200 for letter in columns.dead_letters)
    return sum(array.nbytes for array in arrays) + dead_bytes + 80 * len(columns.id_strings.strings) + 1000
