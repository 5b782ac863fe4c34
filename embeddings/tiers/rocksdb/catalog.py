"""What the parent remembers of a spill: the blocks that wait to be written, and the databases on disk."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from embeddings.tiers.rocksdb.bloom_filter import KeyFilter
from embeddings.tiers.rocksdb.last_seen_histogram import LastSeenHistogram
from embeddings.tiers.write_batch import WriteBatch

MAX_BLOCKS = 256  # a find looks into each


@dataclass(eq=False)
class Database:
    """One folder. `readers` holds it until no find needs it any more."""

    number: int
    keys: KeyFilter = field(default_factory=KeyFilter)
    last_seen: LastSeenHistogram = field(default_factory=LastSeenHistogram)
    num_tombstones: int = 0
    exists: bool = False  # it has taken a write, and must be there
    readers: int = 0


@dataclass(eq=False)
class Generation:
    """Databases, the oldest first: one, or two while the rows that are alive move to the newer."""

    number: int
    databases: list[Database] = field(default_factory=list)
    num_rows: int = 0
    is_destroyed: bool = False
    can_be_rewritten: bool = True

    def num_below(self, horizons: Mapping[int, int]) -> int:
        return sum(database.last_seen.num_below(horizons) for database in self.databases)

    def num_written(self) -> int:
        return sum(database.last_seen.num_rows for database in self.databases)


class Catalog:
    """State under one lock; `changed` tells of every change of it."""

    def __init__(self, queue_bytes: int) -> None:
        self.queue_bytes = queue_bytes
        self.changed = threading.Condition()
        self.waiting: deque[tuple[Generation, WriteBatch]] = deque()  # oldest first; removed once written
        self.waiting_bytes = 0
        self.generations = [Generation(0)]
        self.pending_delete: list[Database] = []
        self._next_number = 0

    def has_room(self, block: WriteBatch) -> bool:
        """One block may always wait, however large it is."""
        fits = self.waiting_bytes + block.num_bytes <= self.queue_bytes and len(self.waiting) < MAX_BLOCKS
        return fits or not self.waiting

    def append(self, block: WriteBatch, num_new: int) -> None:
        """For the newest generation."""
        with self.changed:
            self.waiting.append((self.generations[-1], block))
            self.generations[-1].num_rows += num_new
            self.waiting_bytes += block.num_bytes
            self.changed.notify_all()

    def pop(self) -> None:
        """The oldest block is written."""
        with self.changed:
            _, block = self.waiting.popleft()
            self.waiting_bytes -= block.num_bytes
            self.changed.notify_all()

    @contextmanager
    def reading(self) -> Iterator[tuple[list[WriteBatch], list[Database]]]:
        """What waits and what is on disk, the newest first; the databases live until this ends."""
        with self.changed:
            blocks = [block for generation, block in reversed(self.waiting) if not generation.is_destroyed]
            newest_first = [database for generation in self.generations for database in generation.databases][::-1]
            databases = [database for database in newest_first if database.exists]
            for database in databases:
                database.readers += 1
        try:
            yield blocks, databases
        finally:
            with self.changed:
                for database in databases:
                    database.readers -= 1
                if self.pending_delete:
                    self.changed.notify_all()

    def open_generation(self) -> int:
        with self.changed:
            closed = self.generations[-1].number
            self.generations.append(Generation(closed + 1))
            return closed

    def destroy_generations(self, upto: int) -> None:
        with self.changed:
            for generation in self.generations:
                if generation.number <= upto:
                    generation.is_destroyed = True
                    self.pending_delete += generation.databases
            self.generations = [generation for generation in self.generations if not generation.is_destroyed]
            self.changed.notify_all()

    def add_database(self, generation: Generation) -> None:
        """For the next writes to this generation."""
        with self.changed:
            database = Database(self._next_number)
            self._next_number += 1
            generation.databases.append(database)
            if generation.is_destroyed:
                self.pending_delete.append(database)

    def retire_database(self, generation: Generation, database: Database) -> None:
        with self.changed:
            generation.databases = [other for other in generation.databases if other is not database]
            self.pending_delete.append(database)
            generation.num_rows = min(generation.num_rows, generation.num_written())
            self.changed.notify_all()

    def deletable(self) -> list[Database]:
        """Those that no find needs."""
        with self.changed:
            return [database for database in self.pending_delete if not database.readers]

    def confirm_deleted(self, database: Database) -> None:
        with self.changed:
            self.pending_delete.remove(database)
            self.changed.notify_all()

    def databases(self) -> list[Database]:
        with self.changed:
            return [database for generation in self.generations for database in generation.databases]
