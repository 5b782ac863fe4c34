"""A spill as the parent process knows it: the batches in its queue, and the databases on disk by generation."""

# N rows, M buckets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.rocksdb.live_tables import KeyFilter, LiveTables
from springtide_client.rows.row_block import RowBlock

UInt64Array = npt.NDArray[np.uint64]
MAX_BUCKETS, BUCKETS_PER_FEATURE = 4096, 8
TIME_BITS = 44  # milliseconds until the year 2527; later times count as that, negative ones as 0
LATEST = (1 << TIME_BITS) - 1


class LastSeenHistogram:
    """Buckets of equal width, doubled in width whenever there are too many of them.

    One thread may add while others read.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._lock = threading.Lock()  # of the three that follow
        self._shift = 0
        self._buckets_M = np.empty(0, np.int64)  # feature and last-seen >> shift in one word, ascending
        self._counts_M = np.empty(0, np.int64)

    def add(self, features_N: UInt16Array, last_seen_N: Int64Array) -> None:
        with self._lock:
            buckets_N = np.clip(last_seen_N, 0, LATEST) >> self._shift | features_N.astype(np.int64) << TIME_BITS
            self._merge(buckets_N, np.ones(len(buckets_N), np.int64))
            self.num_rows += len(features_N)

    def num_below(self, cutoffs: Mapping[int, int]) -> int:
        """How many rows were last seen before their feature's cutoff, without those in the bucket of the cutoff."""
        with self._lock:
            features_M, ends_M, counts_M = self._buckets_M >> TIME_BITS, self._ends(), self._counts_M
        return sum(
            int(counts_M[(features_M == feature) & (ends_M <= cutoff)].sum()) for feature, cutoff in cutoffs.items()
        )

    @classmethod
    def merged(cls, parts: Iterable[Self]) -> "LastSeenHistogram":
        """One histogram of all rows, without features."""
        whole = LastSeenHistogram()
        for part in parts:
            with part._lock:
                shift, buckets_M, counts_M, num_rows = part._shift, part._buckets_M, part._counts_M, part.num_rows
            whole._widen(shift)
            whole._merge((buckets_M & LATEST) >> (whole._shift - shift), counts_M)
            whole.num_rows += num_rows
        return whole

    def quantile(self, fraction: float) -> int | None:
        """A last-seen below which about this fraction of the rows lies, and at least one row. None without rows."""
        if not self.num_rows:
            return None
        order = np.argsort(self._buckets_M & LATEST, kind="stable")
        reached = np.cumsum(self._counts_M[order])
        at = int(np.searchsorted(reached, fraction * self.num_rows))
        return int(self._ends()[order[min(at, len(order) - 1)]])

    def _ends(self) -> Int64Array:
        """The first last-seen after each bucket."""
        ends_M: Int64Array = ((self._buckets_M & LATEST) + 1) << self._shift
        return ends_M

    def _widen(self, shift: int) -> None:
        if shift > self._shift:
            features_M, times_M = self._buckets_M >> TIME_BITS, self._buckets_M & LATEST
            self._buckets_M = features_M << TIME_BITS | times_M >> (shift - self._shift)
            self._shift = shift

    def _merge(self, buckets_N: Int64Array, counts_N: Int64Array) -> None:
        self._buckets_M = np.concatenate([self._buckets_M, buckets_N])
        self._counts_M = np.concatenate([self._counts_M, counts_N])
        while True:
            self._buckets_M, inverse = np.unique(self._buckets_M, return_inverse=True)
            self._counts_M = np.bincount(inverse, self._counts_M, len(self._buckets_M)).astype(np.int64)
            num_features = len(np.unique(self._buckets_M >> TIME_BITS))
            if len(self._buckets_M) <= max(MAX_BUCKETS, BUCKETS_PER_FEATURE * num_features) or self._shift >= TIME_BITS:
                return
            self._widen(self._shift + 1)


MAX_QUEUED_BATCHES = 256  # a find searches each of them


@dataclass(eq=False)
class Database:
    """One folder. It is not deleted while it has readers."""

    number: int
    tables: LiveTables
    keys: KeyFilter = field(default_factory=KeyFilter)
    last_seen: LastSeenHistogram = field(default_factory=LastSeenHistogram)
    num_tombstones: int = 0
    num_bytes: int = 0  # of the records written to it
    exists: bool = False  # it was written to, so its folder must be there
    readers: int = 0


@dataclass(eq=False)
class Generation:
    """Databases, the oldest first: writes go to the last one. A key that several of them have counts in the newest."""

    number: int
    databases: list[Database] = field(default_factory=list)
    num_rows: int = 0
    is_destroyed: bool = False
    can_be_rewritten: bool = True

    def num_written(self) -> int:
        return sum(database.last_seen.num_rows for database in self.databases)


class Catalog:
    """The state that all threads share, under the lock of the condition `changed`, which is notified of changes."""

    def __init__(self, queue_bytes: int, tables_of: Callable[[int], LiveTables]) -> None:
        """`tables_of(number)`: the table files of the database with this number."""
        self._tables_of = tables_of
        self.queue_bytes = queue_bytes
        self.changed = threading.Condition()
        self.queue: deque[tuple[Generation, RowBlock]] = deque()  # oldest first; removed once written
        self.queued_bytes = 0
        self.generations = [Generation(0)]
        self.pending_delete: list[Database] = []
        self._next_number = 0

    def has_room(self, num_bytes: int) -> bool:
        """Return True if a batch of so many bytes fits into the queue; an empty queue takes a batch of any size."""
        fits = self.queued_bytes + num_bytes <= self.queue_bytes and len(self.queue) < MAX_QUEUED_BATCHES
        return fits or not self.queue

    def append(self, batch: RowBlock, num_new: int) -> None:
        """Queue a batch for the newest generation."""
        with self.changed:
            self.queue.append((self.generations[-1], batch))
            self.queued_bytes += batch.num_bytes
            self.generations[-1].num_rows += num_new
            self.changed.notify_all()

    def pop(self) -> None:
        """Remove the oldest batch, which was written."""
        with self.changed:
            _, batch = self.queue.popleft()
            self.queued_bytes -= batch.num_bytes
            self.changed.notify_all()

    @property
    def is_empty(self) -> bool:
        """True if nothing is queued and no generation has a database. The caller has the lock."""
        return not self.queue and not any(generation.databases for generation in self.generations)

    @contextmanager
    def reading(self) -> Iterator[tuple[list[RowBlock], list[Database]]]:
        """The queued batches and the databases on disk, the newest first. The databases are not deleted meanwhile."""
        with self.changed:
            batches = [batch for generation, batch in reversed(self.queue) if not generation.is_destroyed]
            newest_first = [database for generation in self.generations for database in generation.databases][::-1]
            databases = [database for database in newest_first if database.exists]
            for database in databases:
                database.readers += 1
        try:
            yield batches, databases
        finally:
            with self.changed:
                for database in databases:
                    database.readers -= 1
                if self.pending_delete:
                    self.changed.notify_all()

    def open_generation(self) -> int:
        """Start a new generation. Return the number of the one that it closes."""
        with self.changed:
            closed = self.generations[-1].number
            self.generations.append(Generation(closed + 1))
            return closed

    def destroy_generations(self, upto: int) -> None:
        """Forget the generations up to this number, and schedule their databases for deletion."""
        with self.changed:
            for generation in self.generations:
                if generation.number <= upto:
                    generation.is_destroyed = True
                    self.pending_delete += generation.databases
            self.generations = [generation for generation in self.generations if not generation.is_destroyed]
            self.changed.notify_all()

    def add_database(self, generation: Generation, at: int | None = None) -> Database:
        """Add a database for the next writes to this generation, or at this position in the order of age."""
        with self.changed:
            database = Database(self._next_number, self._tables_of(self._next_number))
            self._next_number += 1
            generation.databases.insert(len(generation.databases) if at is None else at, database)
            if generation.is_destroyed:
                self.pending_delete.append(database)
            return database

    def retire_database(self, generation: Generation, database: Database) -> None:
        """Schedule a database for deletion whose live rows were moved to another."""
        with self.changed:
            generation.databases = [other for other in generation.databases if other is not database]
            self.pending_delete.append(database)
            generation.num_rows = max(0, min(generation.num_rows, generation.num_written()))
            self.changed.notify_all()

    def deletable(self) -> list[Database]:
        """The databases scheduled for deletion that have no readers."""
        with self.changed:
            return [database for database in self.pending_delete if not database.readers]

    def confirm_deleted(self, database: Database) -> None:
        with self.changed:
            self.pending_delete.remove(database)
            self.changed.notify_all()

    def databases(self) -> list[Database]:
        with self.changed:
            return [database for generation in self.generations for database in generation.databases]
