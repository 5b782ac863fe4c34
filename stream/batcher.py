"""Columns to batches of one size. Knows no model and no Kafka; keeps which positions a batch moves exactly."""

# N rows of one Columns
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stream.columns import Batch, Columns, DeadLetter
from stream.positions import Partition
from stream.slices import join_features, slice_features


@dataclass
class PendingColumns:
    """Columns of which some rows may have been taken."""

    columns: Columns
    arrived: float
    taken: int = 0
    dead: list[DeadLetter] = field(default_factory=list)  # those not handed on yet

    @property
    def num_rows(self) -> int:
        """Rows not taken yet."""
        return len(self.columns) - self.taken


class Batcher:
    """Gathers columns until a batch is full or its oldest sample has waited long enough.

    From `min_batch_size` rows on (absent: a whole batch) a batch is given to whoever asks, unless it may wait for ever.
    Rows leave in the order in which they came, so with max_wait_seconds = inf the batches of a stream are the same
    however it was cut into columns. Columns without rows (dead letters, gaps) leave as soon as no row is before them.
    """

    def __init__(
        self,
        batch_size: int,
        max_wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        min_batch_size: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if not max_wait_seconds >= 0:
            raise ValueError(f"max_wait_seconds must be at least 0, not {max_wait_seconds}")
        self.batch_size = batch_size
        self.max_wait_seconds = max_wait_seconds
        is_eager = min_batch_size is not None and max_wait_seconds < float("inf")
        self._enough_rows = min(min_batch_size or 1, batch_size) if is_eager else batch_size
        self.num_rows = 0  # waiting
        self._clock = clock
        self._pending: deque[PendingColumns] = deque()

    def __len__(self) -> int:
        return self.num_rows

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, neither rows nor positions."""
        return not self._pending

    def add(self, columns: Columns) -> None:
        """Queue decoded rows."""
        self._pending.append(PendingColumns(columns, self._clock(), dead=list(columns.dead_letters)))
        self.num_rows += len(columns)

    def take(self) -> Batch | None:
        """The next batch, or None while it is still worth waiting."""
        if not self._pending:
            return None
        if self.num_rows >= self._enough_rows:
            return self._build(min(self.num_rows, self.batch_size))
        if self._pending[0].num_rows == 0:
            return self._build(0)
        if self._clock() - self._pending[0].arrived >= self.max_wait_seconds:
            return self._build(self.num_rows)
        return None

    def flush(self) -> Batch | None:
        """What is left, at most a batch of it; None once nothing is."""
        return self._build(min(self.num_rows, self.batch_size)) if self._pending else None

    def seconds_until_due(self) -> float | None:
        """How long take() will go on saying None if nothing is added; None = for ever."""
        if not self._pending:
            return None
        if self.num_rows >= self._enough_rows or self._pending[0].num_rows == 0:
            return 0.0
        due = self._pending[0].arrived + self.max_wait_seconds
        return None if due == float("inf") else max(due - self._clock(), 0.0)

    def _build(self, num_rows: int) -> Batch:
        """A batch of the first rows, and of everything without rows that stands right behind them."""
        pieces: list[tuple[Columns, int, int]] = []
        positions: dict[Partition, int] = {}
        topic_ids: dict[Partition, str] = {}
        watermarks: dict[Partition, int] = {}
        dead: list[DeadLetter] = []
        texts = []
        self.num_rows -= num_rows
        while self._pending and (num_rows > 0 or self._pending[0].num_rows == 0):
            pending = self._pending[0]
            columns, start = pending.columns, pending.taken
            stop = start + min(num_rows, pending.num_rows)
            num_rows -= stop - start
            if start == 0 and columns.id_strings.strings:
                texts.append(columns.id_strings)
            pieces.append((columns, start, stop))
            moved = positions_after(columns, start, stop)
            positions.update(moved)
            topic_ids.update((partition, columns.topic_ids.get(partition, "")) for partition in moved)
            for partition, event_ms in latest_event_ms(columns, start, stop).items():
                watermarks[partition] = max(watermarks.get(partition, event_ms), event_ms)
            dead += [letter for letter in pending.dead if letter.offset < moved.get(letter.partition, 0)]
            if stop == len(columns):
                self._pending.popleft()
            else:
                pending.dead = [letter for letter in pending.dead if letter.offset >= moved.get(letter.partition, 0)]
                pending.taken = stop
        return Batch(
            features=join_features([slice_features(columns.features, start, stop) for columns, start, stop in pieces]),
            labels_NL=np.concatenate([columns.labels_NL[start:stop] for columns, start, stop in pieces]),
            weights_N=np.concatenate([columns.weights_N[start:stop] for columns, start, stop in pieces]),
            event_ms_N=np.concatenate([columns.event_ms_N[start:stop] for columns, start, stop in pieces]),
            record_ms_N=np.concatenate([columns.record_ms_N[start:stop] for columns, start, stop in pieces]),
            positions=positions,
            dead_letters=tuple(dead),
            id_strings=texts,
            topic_ids=topic_ids,
            watermarks=watermarks,
        )


def positions_after(columns: Columns, start: int, stop: int) -> dict[Partition, int]:
    """The positions reached once rows start to stop are learned and those before them were."""
    if stop == len(columns):
        return dict(columns.end_offsets)
    positions: dict[Partition, int] = {}
    numbers_N = columns.partition_N
    for number, partition in enumerate(columns.partitions):
        if partition in columns.end_offsets and not np.any(numbers_N[stop:] == number):
            positions[partition] = columns.end_offsets[partition]
        elif len(rows := np.flatnonzero(numbers_N[start:stop] == number)):
            positions[partition] = int(columns.offset_N[start + rows[-1]]) + 1
    return positions


def latest_event_ms(columns: Columns, start: int, stop: int) -> dict[Partition, int]:
    """The latest event time among rows start to stop, by partition."""
    if start == stop:
        return {}
    if len(columns.partitions) == 1:
        return {columns.partitions[0]: int(columns.event_ms_N[start:stop].max())}
    numbers_N, event_ms_N = columns.partition_N[start:stop], columns.event_ms_N[start:stop]
    return {columns.partitions[n]: int(event_ms_N[numbers_N == n].max()) for n in np.unique(numbers_N)}
