"""Frees disk space: moves the live rows of a database into a new one, then deletes the old one whole.

RocksDB frees the space of single deleted rows at its leisure; a folder is deleted at once. Works in small steps
between writes. Live rows are those that have not expired and that no newer database has.
"""

# N rows
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.embeddings.tiers.disk_space import DiskSpace
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import ABSENT
from springtide.embeddings.tiers.rocksdb.catalog import Catalog, Database, Generation
from springtide.embeddings.tiers.rocksdb.channel import KEY_BYTES
from springtide.embeddings.tiers.rocksdb.child_process import RequestFailedError, SpillProcess
from springtide.embeddings.tiers.rocksdb.record_format import RecordFormat
from springtide_client.rows.row_block import RowBlock

EXPIRED_SHARE = 1 / 16  # a database is rewritten once this share of what was written to it has expired
GARBAGE_SHARE = 1 / 4  # of all that was written; less is not worth rewriting when space is short
FREED_SHARE = 0.1  # once all were rewritten and less than this was freed, rows must be forgotten
KEYS_PER_STEP = 1000

Keys = tuple[UInt16Array, Int64Array]
Write = Callable[[Database, RowBlock], None]


@dataclass(eq=False)
class Rewrite:
    """A database whose live rows are being moved into the target, which is next to it and may have older rows."""

    generation: Generation
    source: Database
    target: Database
    cutoffs: dict[int, int]
    after: str = ""  # the last key that was read
    num_read: int = 0
    num_moved: int = 0
    expired: list[RowBlock] = field(default_factory=list)  # while there is a listener


@dataclass(eq=False)
class Collection:
    """The rewriting of databases while space is short, from the oldest on, into targets that they share."""

    targets: set[Database] = field(default_factory=set)
    newest: Database | None = None
    num_read: int = 0
    num_moved: int = 0

    def is_worthwhile(self) -> bool:
        """Return True if the rewrites so far freed enough to begin once more."""
        return self.num_read - self.num_moved > FREED_SHARE * self.num_read


class Purge:
    """`raise_cutoffs` and `must_forget` may be called in any thread, the rest in the worker's."""

    def __init__(self, catalog: Catalog, record_format: RecordFormat, counts: Counter[str], space: DiskSpace) -> None:
        self.catalog, self.record_format, self.counts, self.space = catalog, record_format, counts, space
        self._cutoffs: dict[int, int] = {}
        self._raised = False  # databases have not been checked against the cutoffs since
        self._rewrite: Rewrite | None = None
        self._collection = Collection()
        self._reports = False
        self._purged: list[Keys] = []

    def report(self, reports: bool) -> None:
        """Collect the keys of expired rows that are deleted from now on, or stop to."""
        with self.catalog.changed:
            self._reports = reports
            self._purged = self._purged if reports else []

    def take_purged(self) -> list[Keys]:
        """The keys collected since the last call. A key that was moved twice may be there twice."""
        with self.catalog.changed:
            purged, self._purged = self._purged, []
            return purged

    def raise_cutoffs(self, cutoffs: Mapping[int, int]) -> None:
        """Purge rows last seen before these cutoffs, in ms by feature; a cutoff never falls."""
        with self.catalog.changed:
            higher = {key: time for key, time in cutoffs.items() if time > self._cutoffs.get(key, -(2**63))}
            if higher:
                self._cutoffs |= higher
                self._raised = True
                self._collection = Collection()
                self.catalog.changed.notify_all()

    def active(self) -> bool:
        """Return True if a step would free space or find out that it cannot."""
        with self.catalog.changed:
            is_short = self._is_short()
            if not is_short and self._rewrite is None:
                self._collection = Collection()
            return self._raised or self._rewrite is not None or (is_short and self._next_garbage() is not None)

    def must_forget(self) -> bool:
        """Return True if space is short and only the expiry of more rows would free some."""
        with self.catalog.changed:
            if not self._is_short() or self.active() or self.catalog.pending_delete:
                return False
            num_rows = sum(generation.num_rows for generation in self.catalog.generations)
            # else what is short is space for RocksDB's own files, which it is about to delete
            return self.space.is_mostly(num_rows * (KEY_BYTES + self.record_format.num_bytes)) or self.space.is_full()

    def progress(self) -> object:
        """A value that changes with every step."""
        return self._raised, self._rewrite and (self._rewrite.source.number, self._rewrite.after)

    def step(self, process: Callable[[], SpillProcess], deadline: Callable[[], float], write: Write) -> None:
        """Move at most KEYS_PER_STEP rows. RequestFailedError if the disk fails; the next step tries again."""
        if self._rewrite is not None and self._rewrite.generation.is_destroyed:
            self._end()
        if self._rewrite is not None:
            self._rewrite_some(self._rewrite, process, deadline, write)
        else:
            self._start()

    def _is_short(self) -> bool:
        return self.space.is_short(self.catalog.queued_bytes)

    def _next_garbage(self) -> tuple[Generation, Database] | None:
        """The oldest database that was not rewritten yet, if enough of all that was written is garbage."""
        generations = self.catalog.generations
        num_written = sum(generation.num_written() for generation in generations)
        num_rows = sum(min(generation.num_rows, generation.num_written()) for generation in generations)
        if num_written - num_rows < GARBAGE_SHARE * num_written:
            return None
        if self._collection.is_worthwhile() and not any(self._uncollected()):
            self._collection = Collection()  # once more, from the oldest on
        return next(self._uncollected(), None)

    def _uncollected(self) -> Iterator[tuple[Generation, Database]]:
        generations = self.catalog.generations
        for generation in generations:
            for database in generation.databases if generation.can_be_rewritten else ():
                if database not in self._collection.targets and database.last_seen.num_rows:
                    yield generation, database

    def _start(self) -> None:
        """Start to rewrite the first database that is worth it."""
        with self.catalog.changed:
            was_raised, self._raised = self._raised, False
            cutoffs, generations = dict(self._cutoffs), list(self.catalog.generations)
        if was_raised:
            for generation in generations:
                for database in generation.databases if generation.can_be_rewritten else ():
                    num_below = database.last_seen.num_below(cutoffs)
                    if num_below and num_below >= EXPIRED_SHARE * database.last_seen.num_rows:
                        self._raised = True  # the others are checked after this one
                        self._begin(generation, database, cutoffs)
                        return
        with self.catalog.changed:
            garbage = self._next_garbage() if self._is_short() else None
        if garbage is not None:
            self._begin(*garbage, cutoffs)
            return
        with self.catalog.changed:
            self.catalog.changed.notify_all()

    def _begin(self, generation: Generation, source: Database, cutoffs: dict[int, int]) -> None:
        """Choose the target: the one before the source, if it has room, else a new one next to the source."""
        catalog, collection = self.catalog, self._collection
        if source is generation.databases[-1]:
            catalog.add_database(generation)  # takes the writes from now on
        at, before = generation.databases.index(source), collection.newest
        has_room = before is not None and before.num_bytes < self.space.part_bytes
        if not has_room or at == 0 or generation.databases[at - 1] is not before or before is source:
            before = catalog.add_database(generation, at + 1)
        assert before is not None
        collection.newest = before
        collection.targets.add(before)
        with catalog.changed:
            self._rewrite = Rewrite(generation, source, before, cutoffs)

    def _rewrite_some(
        self,
        rewrite: Rewrite,
        process: Callable[[], SpillProcess],
        deadline: Callable[[], float],
        write: Write,
    ) -> None:
        source, generation = rewrite.source, rewrite.generation
        num_rows = source.last_seen.num_rows
        all_expired = source.last_seen.num_below(rewrite.cutoffs) == num_rows and not source.num_tombstones
        if all_expired and not self._reports:
            # as many of them are garbage as of all
            share = min(1.0, generation.num_rows / max(1, generation.num_written()))
            generation.num_rows -= round((num_rows - rewrite.num_read) * share)
            self.counts["spill_purged"] += num_rows
            last, expired = None, []
        else:
            try:
                last = self._move(rewrite, process(), deadline, write)
                expired = self._without_replaced(rewrite, process(), deadline) if last is None else []
            except RequestFailedError as error:
                if not error.final:
                    raise
                # leave what cannot be read in place; a find that needs it reports the error
                generation.can_be_rewritten = False
                self._end()
                return
        with self.catalog.changed:
            rewrite.after = last or ""
        if last is None:
            self._collection.num_read += num_rows
            self._collection.num_moved += rewrite.num_moved
            with self.catalog.changed:
                # only now, because until then a find could return these rows
                self.catalog.retire_database(generation, source)
                if self._reports:
                    self._purged += self._without_queued(expired)
            self._end()
        with self.catalog.changed:
            self.catalog.changed.notify_all()

    def _move(self, rewrite: Rewrite, running: SpillProcess, deadline: Callable[[], float], write: Write) -> str | None:
        """Move the live ones of the next rows. Returns the last key read, None at the end.

        Repeated after an interruption, it writes the same rows again.
        """
        channel, num = running.worker_channel, min(KEYS_PER_STEP, running.num_keys)
        num, last = channel.call("scan", rewrite.source.number, rewrite.after, num, deadline=deadline())
        found = self.record_format.unpack_scan(channel, num)
        rows, is_row_N = found.rows, found.found_U
        cutoffs = ExpiryCutoffs()
        cutoffs.raise_to(rewrite.cutoffs)
        replaced_N = self._replaced(rewrite, rows, running, deadline)
        live_N = (cutoffs.alive(rows.feature, rows.last_seen) | ~is_row_N) & ~replaced_N
        for kept in (rows.take(live_N & is_row_N), rows.take(live_N & ~is_row_N).keys_only().deleted()):
            if len(kept):
                write(rewrite.target, kept)
        num_moved = int(np.count_nonzero(live_N))
        if self._reports:
            rewrite.expired.append(rows.take(is_row_N & ~live_N & ~replaced_N).keys_only())
        with self.catalog.changed:
            rewrite.num_read, rewrite.num_moved = rewrite.num_read + num, rewrite.num_moved + num_moved
            rewrite.generation.num_rows -= int(np.count_nonzero(is_row_N & ~live_N & ~replaced_N))
        self.counts["spill_purged"] += int(np.count_nonzero(is_row_N & ~live_N & ~replaced_N))
        after: str | None = last
        return after

    def _without_replaced(
        self, rewrite: Rewrite, running: SpillProcess, deadline: Callable[[], float]
    ) -> list[RowBlock]:
        """The expired keys without those that were written or deleted anew while the others were being moved."""
        return [rows.take(~self._replaced(rewrite, rows, running, deadline)) for rows in rewrite.expired]

    def _without_queued(self, expired: list[RowBlock]) -> list[Keys]:
        """The expired keys without those that are queued to be written or deleted. The caller has the lock."""
        kept = []
        for rows in expired:
            found = FoundRows.nothing(rows.feature, rows.id, 0, 0)
            missing = np.argsort(rows.key_hash)
            for _, batch in self.catalog.queue:
                missing = found.put_batch(missing, batch.keys_only())
            kept.append((rows.feature[missing], rows.id[missing]))
        return kept

    def _replaced(
        self, rewrite: Rewrite, rows: RowBlock, running: SpillProcess, deadline: Callable[[], float]
    ) -> BoolArray:
        """Which of these rows a newer database has too: a filter says where to look."""
        replaced_N = np.zeros(len(rows), np.bool_)
        with self.catalog.changed:
            databases = list(rewrite.generation.databases)
        newer = databases[databases.index(rewrite.source) + 1 :]
        for database in reversed(newer):
            if database is rewrite.target or not database.exists:
                continue
            at = np.flatnonzero(~replaced_N)
            at = at[database.keys.contains(rows.key_hash[at])]
            if len(at):
                channel = running.worker_channel
                self.record_format.pack_keys(rows.key_hash[at], rows.feature[at], channel.keys(len(at)))
                channel.call("find", database.number, len(at), deadline=deadline())
                replaced_N[at] = channel.kinds(len(at)) != ABSENT
        return replaced_N

    def _end(self) -> None:
        with self.catalog.changed:
            self._rewrite = None
            self.catalog.changed.notify_all()
