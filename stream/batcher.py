"""Gathers columns into batches, and knows exactly which positions a batch moves. Knows no model.

The source decides which partition's rows come next: column_queue.py. A batch has the samples that have arrived,
up to a full one; a full one is small at first, and grows with the number of samples learned (`BatchSize`).
"""

# N rows of one Columns
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Batch, Columns, concatenate_present
from springtide.stream.negatives import RowSampling
from springtide.stream.positions import Partition
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID

# A batch is scored before it is learned: nothing in it profits from the samples beside it. A 128th of what was learned
# before is little to miss, and from the first sample to batches of 4096 it takes 1,152 steps, some seconds. (A learner
# that walks through a batch sample by sample misses less, and may have larger ones.)
GROWTH = 128

# while enough samples for a full batch wait, a smaller batch is not worth a step: many small ones would keep the
# reading thread from the processor, and the trainer would not catch up
BEHIND_WAIT_SECONDS = 0.2

# how long the newest request waits for more samples of it: producers send a request's records at once, and a fetch may
# still end between two of them
REQUEST_WAIT_SECONDS = 0.02


@dataclass(frozen=True)
class BatchSize:
    """The size of full batches as a function of the samples learned before, and of nothing else.

    So the batches of a stream are the same after a restart. Between `min_batch_size` and `batch_size` sizes are powers
    of two, so that few different ones occur.
    """

    batch_size: int  # the most
    min_batch_size: int = 0  # the fewest; 0: always `batch_size`
    growth: int = GROWTH  # a batch has at most this part of the samples learned before it

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.min_batch_size < 0:
            raise ValueError(f"min_batch_size must be at least 0, not {self.min_batch_size}")
        if self.growth < 1:
            raise ValueError(f"growth must be at least 1, not {self.growth}")

    def after(self, num_learned: int) -> int:
        """Return the size of a full batch after so many samples."""
        if self.min_batch_size == 0:
            return self.batch_size
        share = num_learned // self.growth
        power_of_two = 1 << share.bit_length() >> 1
        return min(self.batch_size, max(self.min_batch_size, power_of_two))


@dataclass
class PendingColumns:
    """Columns of which some rows may have been taken."""

    columns: Columns
    arrived_at: float
    num_taken: int = 0

    @property
    def num_rows(self) -> int:
        """The number of rows that no batch has taken yet."""
        return len(self.columns) - self.num_taken


class Batcher:
    """Gathers columns until a batch is full or its oldest sample has waited `max_wait_seconds`.

    Without a wait a batch has the samples that have arrived, at most those of a full one. While `is_behind` is set it
    waits for a full one all the same, `BEHIND_WAIT_SECONDS` or longer. Full batches grow from
    `min_batch_size` (`BatchSize`). Rows leave in the order of their arrival, so with an infinite wait the batches of a
    stream do not depend on how it was split into columns, nor on where reading began. Columns without rows (dead
    letters, offset gaps) leave as soon as no row precedes them.

    The samples of one record (Arrow) leave together, since a position is between two records: a batch ends before the
    record that would not fit, and only one that holds more than a full batch makes a larger one. With `by_request` the
    samples of one request that follow each other leave together too, up to `batch_size`; the newest one waits
    `REQUEST_WAIT_SECONDS` for more of them.
    """

    def __init__(
        self,
        batch_size: int,
        max_wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        min_batch_size: int = 0,
        growth: int = GROWTH,
        num_learned: int = 0,
        by_request: bool = False,
    ) -> None:
        """`num_learned`: samples learned before the first row that is added."""
        self.size = BatchSize(batch_size, min_batch_size, growth)
        if not max_wait_seconds >= 0:
            raise ValueError(f"max_wait_seconds must be at least 0, not {max_wait_seconds}")
        self.num_learned = num_learned  # as soon as all batches built so far are
        self.max_wait_seconds = max_wait_seconds
        self.is_behind = False  # set by the caller, which sees the whole stream: samples for a full batch wait
        self.num_rows = 0  # pending
        self.by_request = by_request
        self._clock = clock
        self._pending: deque[PendingColumns] = deque()

    def __len__(self) -> int:
        return self.num_rows

    @property
    def is_empty(self) -> bool:
        """True if neither rows nor positions are pending."""
        return not self._pending

    @property
    def full_rows(self) -> int:
        """The most rows that the next batch will have."""
        return self.size.after(self.num_learned)

    @property
    def _wait_seconds(self) -> float:
        """How long a batch that is not full waits for more."""
        return max(self.max_wait_seconds, BEHIND_WAIT_SECONDS) if self.is_behind else self.max_wait_seconds

    def add(self, columns: Columns) -> None:
        """Queue decoded rows."""
        self._pending.append(PendingColumns(columns, self._clock()))
        self.num_rows += len(columns)

    def take(self) -> Batch | None:
        """The next batch, or None while it is still worth waiting."""
        if not self._pending:
            return None
        if (num_rows := self._rows_of_full()) is not None:
            return self._build(num_rows)
        first = self._pending[0]
        if self._clock() - first.arrived_at >= self._wait_seconds:
            if self._seconds_of_request() == 0:
                return self._build(self.num_rows)
            if len(ends := self._ends(self.num_rows)):
                return self._build(int(ends[-1]))
        return self._build(0) if first.num_rows == 0 else None

    def flush(self) -> Batch | None:
        """A batch of what is pending, however little; None once nothing is."""
        if not self._pending:
            return None
        num_rows = self._rows_of_full()
        return self._build(self.num_rows if num_rows is None else num_rows)

    def seconds_until_due(self) -> float | None:
        """How long take() will keep returning None if nothing is added; None = for ever."""
        if not self._pending:
            return None
        if self.is_full or self._pending[0].num_rows == 0:
            return 0.0
        due = self._pending[0].arrived_at + self._wait_seconds
        return None if due == float("inf") else max(due - self._clock(), self._seconds_of_request())

    @property
    def is_full(self) -> bool:
        """True if a full batch is here."""
        return self._rows_of_full() is not None if self.by_request else self.num_rows >= self.full_rows

    def _rows_of_full(self) -> int | None:
        """The rows of a full batch, None until it is here. It divides no record.

        With `by_request` it divides no request either, unless one has more than `batch_size` samples; where a request
        ends is only known by the row after it.
        """
        full_rows = self.full_rows
        if not self.by_request:
            return self._whole_records(full_rows) if self.num_rows >= full_rows else None
        if self.num_rows <= full_rows:
            return None
        if len(ends := self._ends(full_rows + 1)):
            return int(ends[-1])
        most = max(full_rows, self.size.batch_size)
        if len(ends := self._ends(min(self.num_rows, most + 1))):
            return int(ends[0])
        return self._whole_records(most) if self.num_rows > most else None

    def _seconds_of_request(self) -> float:
        """How long the newest request still waits for more of its samples."""
        if not self.by_request:
            return 0.0
        return max(self._pending[-1].arrived_at + REQUEST_WAIT_SECONDS - self._clock(), 0.0)

    def _ends(self, num_rows: int) -> npt.NDArray[np.intp]:
        """Where among the first rows, so many, one record and request end and the next begin; neither 0 nor the end."""
        if num_rows < 2:
            return np.zeros(0, np.intp)
        is_start, before = [], MISSING_ID
        for pending in self._pending:
            columns, first = pending.columns, pending.num_taken
            if (num := min(num_rows, pending.num_rows)) <= 0:
                continue
            rows, num_rows = slice(first, first + num), num_rows - num
            starts_N = np.ones(num, np.bool_)
            if columns.joined is None:
                starts_N[1:] = np.diff(columns.offset_N[rows]) != 0
                starts_N[1:] |= np.diff(columns.partition_N[rows]) != 0
            if columns.request_N is not None:
                request_N = columns.request_N[rows]
                starts_N &= (request_N == MISSING_ID) | (request_N != np.concatenate([[before], request_N[:-1]]))
                before = int(request_N[-1])
            is_start.append(starts_N)
        return np.flatnonzero(np.concatenate(is_start)[1:]) + 1

    def _whole_records(self, num_rows: int) -> int:
        """The most rows, up to this many, that divide no record; those of the first record if even it has more."""
        num_before = 0
        for pending in self._pending:
            if num_before + pending.num_rows < num_rows:
                num_before += pending.num_rows
                continue
            row = pending.num_taken + num_rows - num_before
            start = pending.columns.record_start(row)
            if num_before + start - pending.num_taken == 0 and num_rows > 0:
                start = pending.columns.record_end(row)
            return num_before + start - pending.num_taken
        return num_rows

    def _build(self, num_rows: int) -> Batch:
        """A batch of up to `num_rows` first rows, and of everything without rows that follows them directly."""
        pieces: list[Columns] = []
        positions: dict[Partition, int] = {}
        topic_ids: dict[Partition, str] = {}
        watermarks: dict[Partition, int] = {}
        id_strings = []
        self.num_rows -= num_rows
        self.num_learned += num_rows
        while self._pending and (num_rows > 0 or self._pending[0].num_rows == 0):
            pending = self._pending[0]
            columns, start = pending.columns, pending.num_taken
            stop = pending.num_taken = start + min(num_rows, pending.num_rows)
            num_rows -= stop - start
            if start == 0 and columns.id_strings.strings:
                id_strings.append(columns.id_strings)
            pieces.append(piece := columns.slice(start, stop))
            positions.update(piece.end_offsets)
            topic_ids.update((partition, piece.topic_ids.get(partition, "")) for partition in piece.end_offsets)
            for partition, event_ms in piece.watermarks().items():
                watermarks[partition] = max(watermarks.get(partition, event_ms), event_ms)
            if stop == len(columns):
                self._pending.popleft()
        sampled = RowSampling.concatenate([piece.sampled for piece in pieces])
        return Batch(
            features=Features.concatenate([piece.features for piece in pieces]),
            labels_NL=np.concatenate([piece.labels_NL for piece in pieces]),
            weights_N=np.concatenate([piece.weights_N for piece in pieces]),
            event_ms_N=np.concatenate([piece.event_ms_N for piece in pieces]),
            record_ms_N=np.concatenate([piece.record_ms_N for piece in pieces]),
            positions=positions,
            dead_letters=tuple(letter for piece in pieces for letter in piece.dead_letters),
            id_strings=id_strings,
            topic_ids=topic_ids,
            watermarks=watermarks,
            grade_N=None if pieces[0].grade_N is None else np.concatenate([piece.grade_N for piece in pieces]),
            shares_NL=None if pieces[0].shares_NL is None else np.concatenate([piece.shares_NL for piece in pieces]),
            served_N=concatenate_present([piece.served_N for piece in pieces]),
            request_N=concatenate_present([piece.request_N for piece in pieces]),
            group_N=concatenate_present([piece.group_N for piece in pieces]),
            signals_N=concatenate_present([piece.signals_N for piece in pieces]),
            numbers_NK=concatenate_present([piece.numbers_NK for piece in pieces]),
            join=pieces[-1].joined.state_after(len(pieces[-1])) if pieces[-1].joined is not None else None,
            rates_N=None
            if (sampled := RowSampling.concatenate([p.sampled for p in pieces])) is None
            else sampled.rates_N,
            num_dropped=sum(piece.sampled.num_dropped for piece in pieces if piece.sampled is not None),
        )
