"""A spill as the parent process knows it: the batches in its queue, and the databases on disk by generation."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from springtide.embeddings.tiers.rocksdb.bloom_filter import KeyFilter
from springtide.embeddings.tiers.rocksdb.last_seen_histogram import LastSeenHistogram
from springtide.embeddings.tiers.rocksdb.tables.live_tables import LiveTables
from springtide.embeddings.tiers.write_batch import WriteBatch

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
        self.queue: deque[tuple[Generation, WriteBatch]] = deque()  # oldest first; removed once written
        self.queued_bytes = 0
        self.generations = [Generation(0)]
        self.pending_delete: list[Database] = []
        self._next_number = 0

    def has_room(self, num_bytes: int) -> bool:
        """Return True if a batch of so many bytes fits into the queue; an empty queue takes a batch of any size."""
        fits = self.queued_bytes + num_bytes <= self.queue_bytes and len(self.queue) < MAX_QUEUED_BATCHES
        return fits or not self.queue

    def append(self, batch: WriteBatch, num_new: int) -> None:
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

    @contextmanager
    def reading(self) -> Iterator[tuple[list[WriteBatch], list[Database]]]:
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
