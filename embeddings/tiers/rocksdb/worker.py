"""The background thread of a spill: the only one that starts its process, writes, purges and deletes databases.

RocksDB's own options are set in that process: process_main.py.
"""

import logging
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.disk_space import DiskSpace
from springtide.embeddings.tiers.rocksdb.catalog import Catalog, Database, Generation
from springtide.embeddings.tiers.rocksdb.channel import KEY_BYTES
from springtide.embeddings.tiers.rocksdb.child_process import ProcessLostError, RequestFailedError, SpillProcess
from springtide.embeddings.tiers.rocksdb.live_tables import LiveTables
from springtide.embeddings.tiers.rocksdb.purge import Purge
from springtide.embeddings.tiers.rocksdb.record_format import RecordFormat
from springtide_client.rows.row_block import RowBlock
from springtide_client.system.clock import Backoff

OTHER_PROCESS = "another process has it open: give every trainer a disk_path of its own"
RESTART = "restart the trainer: it reads the spilled rows back from the log"
HINTS = {
    "no space left": "free some space on its disk, or lower disk_bytes",
    "file too large": "raise the limit on the size of files, or lower disk_bytes",
    "lock hold": OTHER_PROCESS,
    "lock file": OTHER_PROCESS,
    "read-only file system": "make disk_path writable",
    "permission denied": "make disk_path writable",
    "vanished": RESTART,
    "a record of": RESTART,
    "corruption": f"check the disk, and {RESTART}",
    "no rocksdb": "install rocksdb-py, or configure no spill",
}


def with_hint(why: str) -> str:
    """The reason, with a hint if there is one for it."""
    return next((f"{why} - {hint}" for sign, hint in HINTS.items() if sign in why.lower()), why)


logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.02, 1.0
STALL_SECONDS = 1.0  # a caller that has waited this long is reported as stalled
THREAD_NAME = "spill-worker"


class SpillWorker:
    """Retries what fails for ever, with backoff. Callers get the reason as a SpillError when their patience ends."""

    def __init__(self, folder: Path, record_format: RecordFormat, *, queue_bytes: int, patience_seconds: float) -> None:
        self.folder, self.record_format, self.patience_seconds = folder, record_format, patience_seconds
        self.catalog, self.counts = Catalog(queue_bytes, self._tables_of), Counter[str]()
        self.space = DiskSpace(folder)
        self.purge = Purge(self.catalog, record_format, self.counts, self.space)
        self._max_queue_bytes = queue_bytes
        self._sent_part: tuple[SpillProcess, float] | None = None
        self._changed = self.catalog.changed
        self._process: SpillProcess | None = None
        self._process_wanted = False  # a find waits for a process
        self._last_failure = ""
        self.unknown_format = ""  # what RocksDB writes that is not read here
        self._callers: dict[int, float] = {}  # thread -> since when it has been waiting
        self._full_since = math.inf  # since when there was no room for what is to be written
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._error: BaseException | None = None
        self._reserved_bytes = 0
        self._closing = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    # called in any thread

    def deadline(self) -> float:
        return time.monotonic() + self.patience_seconds

    def enqueue(self, batch: RowBlock, num_new: int) -> None:
        """Add a batch to the queue once there is room, or as part of what there was room for when it was asked.

        SpillError if there is no room for too long.
        """
        with self._changed, self.blocking_call():
            is_reserved = batch.num_bytes <= self._reserved_bytes
            if is_reserved:
                self._reserved_bytes -= batch.num_bytes
            elif not self._changed.wait_for(
                lambda: self.catalog.has_room(batch.num_bytes) or self._is_ended(), self.patience_seconds
            ):
                raise self._failure("takes no rows", self._last_failure or "its disk is too slow")
            self._raise_error()
            self.catalog.append(batch, num_new)

    def has_room(self, num_bytes: int, wait_seconds: float) -> bool:
        """Return True once the queue takes so many bytes, and reserve them; False if it does not within this time.

        Until the next call, writes of so many bytes in all do not wait: a batch makes several, and fails at none of
        them. SpillError if the spill has failed for good.
        """
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self.catalog.has_room(num_bytes) or self._is_ended(), wait_seconds
            )
            self._raise_error()
            self._reserved_bytes = num_bytes if has_room else 0
            if has_room:
                self._full_since = math.inf
            else:
                self._full_since = min(self._full_since, time.monotonic() - wait_seconds)
            return has_room

    def set_limit(self, num_bytes: int) -> None:
        """Keep the folder within this many bytes; the queue, which is written to it, has a part of that."""
        with self._changed:
            self.space.limit = num_bytes
            self.catalog.queue_bytes = min(self._max_queue_bytes, int(self.space.part_bytes))
            self._changed.notify_all()

    @contextmanager
    def blocking_call(self) -> Iterator[None]:
        """Note that this thread makes a call that may block for long."""
        me = threading.get_ident()
        self._callers[me] = time.monotonic()
        try:
            yield
        finally:
            del self._callers[me]

    def stall_reason(self) -> str:
        """Why a caller has been waiting for more than a second; empty if none has. Returns at once."""
        since = min([self._full_since, *self._callers.values()])
        if time.monotonic() - since < STALL_SECONDS:
            return ""
        return str(self._failure("keeps a caller waiting", str(self._error or self._last_failure)))

    def is_empty(self) -> bool:
        """Return True if nothing is queued or on disk; only `enqueue` changes that. SpillError as of `reading`."""
        with self._changed:
            self._raise_error()
            return self.catalog.is_empty

    @contextmanager
    def reading(self) -> Iterator[tuple[list[RowBlock], list[Database]]]:
        """Catalog.reading; SpillError if this spill has failed or is closed."""
        with self._changed:
            self._raise_error()
        with self.catalog.reading() as found:
            yield found

    def process(self, deadline: float) -> SpillProcess:
        """The running process; waits until one is started. SpillError at the deadline."""
        with self._changed:
            self._process_wanted = True
            self._changed.notify_all()
            remaining = max(0.0, deadline - time.monotonic())
            ready = self._changed.wait_for(lambda: self._is_alive() or self._is_ended(), remaining)
            self._raise_error()
            if not ready or self._process is None:
                raise self._failure("does not respond", self._last_failure)
            return self._process

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end of this worker."""
        with self._changed:
            self._changed.wait_for(self._is_ended, seconds)

    def drain(self) -> None:
        """Wait until nothing is queued, being purged or deleted. SpillError if there is no progress for too long."""
        with self._changed:
            deadline, before = self.deadline(), self._progress()
            while self.catalog.queue or self.purge.active() or self.catalog.deletable():
                self._changed.wait(max(0.0, deadline - time.monotonic()))
                self._raise_error()
                if before != (before := self._progress()):
                    deadline = self.deadline()
                elif time.monotonic() >= deadline:
                    raise self._failure("cannot be written", self._last_failure)

    def memory_bytes(self) -> int:
        databases = self.catalog.databases()
        filters = sum(database.keys.num_bytes() + database.tables.num_bytes() for database in databases)
        return filters + (self._process.num_bytes if self._process is not None else 0)

    def close(self) -> None:
        """End without writing the queue, and delete the folder."""
        if os.getpid() != self._owner:  # a forked copy: process and folder are the parent's
            return
        with self._changed:
            self._closing = True
            if self._process is not None:
                self._process.kill()
            self._changed.notify_all()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tables_of(self, number: int) -> LiveTables:
        folder, record_bytes = self.folder / f"{number:06d}", self.record_format.num_bytes
        return LiveTables(folder, record_bytes, on_unknown_format=self._note_unknown_format)

    def _note_unknown_format(self, why: str) -> None:
        """Count a database whose table files only RocksDB can read. Any thread."""
        with self._changed:
            self.counts["spill_unknown_formats"] += 1
            is_first, self.unknown_format = not self.unknown_format, why
        if is_first:
            logger.warning("the format of the spill's tables is unknown, RocksDB reads them", extra={"reason": why})

    def _is_ended(self) -> bool:
        return self._error is not None or self._closing

    def _raise_error(self) -> None:
        if os.getpid() != self._owner:
            raise SpillError(f"the spill in {self.folder} belongs to another process, from which this one was forked")
        if self._error is not None:
            raise self._failure("has failed", str(self._error)) from self._error
        if self._closing:
            raise SpillError(f"the spill in {self.folder} is closed")

    def _failure(self, what: str, why: str) -> SpillError:
        return SpillError(f"the spill in {self.folder} {what}: {with_hint(why or 'it is too slow')}")

    def _progress(self) -> object:
        return len(self.catalog.queue), len(self.catalog.pending_delete), self.purge.progress()

    # the worker's thread

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                try:
                    self._run_steps()
                    self._last_failure = ""
                    self._backoff.succeed()
                except (ProcessLostError, RequestFailedError) as error:
                    if isinstance(error, RequestFailedError) and error.final:
                        raise
                    self._back_off(str(error))
        except BaseException as error:  # raised in the next caller
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            if self._process is not None:
                self._process.close()

    def _wait_for_work(self) -> bool:
        """Return True when there is work, False when it is time to end."""

        def has_work() -> bool:
            must_restart = self._process_wanted and not self._is_alive()
            return must_restart or bool(self.catalog.queue or self.purge.active() or self.catalog.deletable())

        with self._changed:
            if not self._backoff.is_over:
                self._changed.wait_for(lambda: self._closing, self._backoff.remaining_seconds)
            self._changed.wait_for(lambda: self._closing or has_work())
            return not self._closing

    def _back_off(self, why: str) -> None:
        with self._changed:
            self._last_failure = why
            self._backoff.fail()

    def _run_steps(self) -> None:
        """Take a step of each kind of work, so that a full disk, which stops writes, does not stop deleting."""
        failures = []
        for step in (self._delete_databases, self._restart_process, self._write_oldest, self._purge_some):
            try:
                step()
            except RequestFailedError as error:
                if error.final:
                    raise
                failures.append(error)
        if failures:
            raise failures[0]

    def _is_alive(self) -> bool:
        return self._process is not None and not self._process.lost

    def _restart_process(self) -> None:
        if self._process_wanted and not self._is_alive():
            self._ensure_process()

    def _ensure_process(self) -> SpillProcess:
        if self._process is not None and not self._process.lost:
            return self._process
        if self._process is not None:
            self._process.close()
        process = SpillProcess(self.folder, self.record_format.num_bytes)
        with self._changed:
            self._process, self._process_wanted = process, False
            self.counts["spill_starts"] += 1
        process.worker_channel.call(deadline=self.deadline())
        with self._changed:
            self._changed.notify_all()
        return process

    def _write_oldest(self) -> None:
        if not self.catalog.queue:
            return
        if self.space.is_full() and (self.purge.active() or self.catalog.deletable()):
            return  # what is being freed makes room
        generation, batch = self.catalog.queue[0]
        if not generation.is_destroyed:
            if not generation.databases or generation.databases[-1].num_bytes >= self.space.part_bytes:
                self._seal(generation)
                self.catalog.add_database(generation)
            self._write(generation.databases[-1], batch)
        self.counts["spill_written"] += len(batch)
        self.catalog.pop()

    def _seal(self, generation: Generation) -> None:
        """Write the newest database's rows to its tables, which deletes its log of writes."""
        if generation.databases and generation.databases[-1].exists:
            self._ensure_process().worker_channel.call(
                "flush", generation.databases[-1].number, deadline=self.deadline()
            )

    def _write(self, database: Database, batch: RowBlock) -> None:
        process, is_deleted = self._ensure_process(), batch.tombstone is not None
        channel = process.worker_channel
        if not database.exists and self._sent_part != (process, self.space.part_bytes):
            part_bytes = self.space.part_bytes
            channel.call(
                "set_database_bytes", 0 if math.isinf(part_bytes) else int(part_bytes), deadline=self.deadline()
            )
            self._sent_part = process, part_bytes
        database.tables.add(batch.key_hash)
        database.keys.add(batch.key_hash)
        for start in range(0, len(batch), process.num_keys):
            part = batch.take(slice(start, start + process.num_keys))
            self.record_format.pack_keys(part.key_hash, part.feature, channel.keys(len(part)))
            if not is_deleted:
                self.record_format.pack(part, channel.records(len(part)))
            request = "write", database.number, len(part), is_deleted, not database.exists
            try:
                (sequence,) = channel.call(*request, deadline=self.deadline())
            except RequestFailedError:
                self.counts["spill_failures"] += 1
                raise
            database.exists = True
        database.tables.written(sequence)
        if is_deleted:
            database.num_tombstones += len(batch)
        else:
            database.last_seen.add(batch.feature, batch.last_seen)
        num_bytes = len(batch) * (KEY_BYTES + (0 if is_deleted else self.record_format.num_bytes))
        database.num_bytes += num_bytes
        self.space.add_written(num_bytes)

    def _delete_databases(self) -> None:
        for database in self.catalog.deletable():
            if self._process is not None and not self._process.lost:
                self._process.worker_channel.call("destroy", database.number, deadline=self.deadline())
            else:
                shutil.rmtree(self.folder / f"{database.number:06d}", ignore_errors=True)
            self.space.measure()
            self.catalog.confirm_deleted(database)

    def _purge_some(self) -> None:
        if self.purge.active():
            self.purge.step(self._ensure_process, self.deadline, self._write)
