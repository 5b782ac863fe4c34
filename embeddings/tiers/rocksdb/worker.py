"""The thread behind a spill: the only one that starts its process, writes, purges and destroys."""

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from springtide_client.system.backoff import Backoff

from embeddings.errors import SpillError
from embeddings.tiers.rocksdb.catalog import Catalog, Database
from embeddings.tiers.rocksdb.child_process import ProcessLostError, RequestFailedError, SpillProcess
from embeddings.tiers.rocksdb.error_hints import with_hint
from embeddings.tiers.rocksdb.purge import Purge
from embeddings.tiers.write_batch import RecordFormat, WriteBatch

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.02, 1.0
TOLD_SECONDS = 1.0  # a caller that has waited for so long is told of


class SpillWorker:
    """What fails is done again after a pause, for ever; callers are told why when their patience ends."""

    def __init__(self, folder: Path, form: RecordFormat, *, queue_bytes: int, patience_seconds: float) -> None:
        self.folder, self.record_format, self.patience_seconds = folder, form, patience_seconds
        self.catalog, self.counts = Catalog(queue_bytes), Counter[str]()
        self.purge = Purge(self.catalog, form, self.counts)
        self._changed = self.catalog.changed
        self._process: SpillProcess | None = None
        self._wanted = False  # a find waits for a process
        self._last_failure = ""
        self._callers: dict[int, float] = {}  # threads that wait -> since when
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._error: BaseException | None = None
        self._closing = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="spill-worker", daemon=True)
        self._thread.start()

    # for any thread

    def deadline(self) -> float:
        return time.monotonic() + self.patience_seconds

    def enqueue(self, block: WriteBatch, num_new: int) -> None:
        """Into the queue, when there is room."""
        with self._changed, self.blocking_call():
            if not self._changed.wait_for(
                lambda: self.catalog.has_room(block) or self._is_ended(), self.patience_seconds
            ):
                raise self._failure("takes no rows", self._last_failure or "its disk is too slow")
            self._raise_error()
            self.catalog.append(block, num_new)

    @contextmanager
    def blocking_call(self) -> Iterator[None]:
        """This thread asks for something that may take long."""
        me = threading.get_ident()
        self._callers[me] = time.monotonic()
        try:
            yield
        finally:
            del self._callers[me]

    def stall_reason(self) -> str:
        """Why a caller has been waiting for longer than a second; empty where none has. Waits for nothing itself."""
        since = min(list(self._callers.values()), default=float("inf"))
        if time.monotonic() - since < TOLD_SECONDS:
            return ""
        return str(self._failure("is waited for", self._last_failure))

    @contextmanager
    def reading(self) -> Iterator[tuple[list[WriteBatch], list[Database]]]:
        """Shelf.reading, of a spill that is well."""
        with self._changed:
            self._raise_error()
        with self.catalog.reading() as found:
            yield found

    def process(self, deadline: float) -> SpillProcess:
        """The living process; waits for one to be started."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            remaining = max(0.0, deadline - time.monotonic())
            ready = self._changed.wait_for(lambda: self._is_alive() or self._is_ended(), remaining)
            self._raise_error()
            if not ready or self._process is None:
                raise self._failure("does not answer", self._last_failure)
            return self._process

    def wait_a_little(self, pause: float) -> None:
        """Ends early where waiting has become pointless."""
        with self._changed:
            self._changed.wait_for(self._is_ended, pause)

    def drain(self) -> None:
        """Until nothing waits, is purged or destroyed; SpillError where there is no progress for too long."""
        with self._changed:
            deadline, before = self.deadline(), self._progress()
            while self.catalog.waiting or self.purge.active() or self.catalog.deletable():
                self._changed.wait(max(0.0, deadline - time.monotonic()))
                self._raise_error()
                if before != (before := self._progress()):
                    deadline = self.deadline()
                elif time.monotonic() >= deadline:
                    raise self._failure("cannot be written", self._last_failure)

    def memory_bytes(self) -> int:
        filters = sum(database.keys.num_bytes() for database in self.catalog.databases())
        return filters + (self._process.num_bytes if self._process is not None else 0)

    def close(self) -> None:
        """Ends without writing what waits, and removes the folder: nothing in it outlives its owner."""
        if os.getpid() != self._owner:  # a fork's copy: process and folder are another's
            return
        with self._changed:
            self._closing = True
            if self._process is not None:
                self._process.kill()
            self._changed.notify_all()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_ended(self) -> bool:
        return self._error is not None or self._closing

    def _raise_error(self) -> None:
        if os.getpid() != self._owner:
            raise SpillError(f"the spill in {self.folder} belongs to another process, which forked this one")
        if self._error is not None:
            raise self._failure("has failed", str(self._error)) from self._error
        if self._closing:
            raise SpillError(f"the spill in {self.folder} is closed")

    def _failure(self, what: str, why: str) -> SpillError:
        return SpillError(f"the spill in {self.folder} {what}: {with_hint(why or 'it is too slow')}")

    def _progress(self) -> object:
        return len(self.catalog.waiting), len(self.catalog.pending_delete), self.purge.progress()

    # the keeper's thread

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
        except BaseException as error:  # told to the next caller
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            if self._process is not None:
                self._process.close()

    def _wait_for_work(self) -> bool:
        """Whether there is any; False when it is time to end."""

        def has_work() -> bool:
            revive = self._wanted and not self._is_alive()
            return revive or bool(self.catalog.waiting or self.purge.active() or self.catalog.deletable())

        with self._changed:
            if pause := self._backoff.remaining_seconds:
                self._changed.wait_for(lambda: self._closing, pause)
            self._changed.wait_for(lambda: self._closing or has_work())
            return not self._closing

    def _back_off(self, why: str) -> None:
        with self._changed:
            self._last_failure = why
            self._backoff.fail()

    def _run_steps(self) -> None:
        """A step of each kind that there is: a full disk keeps nobody from destroying."""
        troubles = []
        for step in (self._destroy_pending, self._restart_process, self._write_oldest, self._purge_some):
            try:
                step()
            except RequestFailedError as error:
                if error.final:
                    raise
                troubles.append(error)
        if troubles:
            raise troubles[0]

    def _is_alive(self) -> bool:
        return self._process is not None and not self._process.lost

    def _restart_process(self) -> None:
        if self._wanted and not self._is_alive():
            self._ensure_process()

    def _ensure_process(self) -> SpillProcess:
        if self._process is not None and not self._process.lost:
            return self._process
        if self._process is not None:
            self._process.close()
        child = SpillProcess(self.folder, self.record_format.num_bytes)
        with self._changed:
            self._process, self._wanted = child, False
            self.counts["spill_starts"] += 1
        child.worker_channel.call(deadline=self.deadline())
        with self._changed:
            self._changed.notify_all()
        return child

    def _write_oldest(self) -> None:
        if not self.catalog.waiting:
            return
        generation, block = self.catalog.waiting[0]
        if not generation.is_destroyed:
            if not generation.databases:
                self.catalog.add_database(generation)
            self._write(generation.databases[-1], block)
        self.catalog.pop()

    def _write(self, database: Database, block: WriteBatch) -> None:
        child = self._ensure_process()
        lane = child.worker_channel
        database.keys.add(block.mixed)
        for start in range(0, len(block), child.num_keys):
            part = block.sub_batch(start, start + child.num_keys)
            self.record_format.pack_keys(part.mixed, part.features, lane.keys(len(part)))
            if part.rows is not None:
                self.record_format.pack(part.rows, part.mixed, lane.records(len(part)))
            request = "write", database.number, len(part), part.rows is None, not database.exists
            try:
                lane.call(*request, deadline=self.deadline())
            except RequestFailedError:
                self.counts["spill_failures"] += 1
                raise
            database.exists = True
        if block.rows is None:
            database.num_tombstones += len(block)
        else:
            database.last_seen.add(block.features, block.rows.last_seen)
        self.counts["spill_written"] += len(block)

    def _destroy_pending(self) -> None:
        for database in self.catalog.deletable():
            if self._process is not None and not self._process.lost:
                self._process.worker_channel.call("destroy", database.number, deadline=self.deadline())
            else:
                shutil.rmtree(self.folder / f"{database.number:06d}", ignore_errors=True)
            self.catalog.confirm_deleted(database)

    def _purge_some(self) -> None:
        self.purge.step(self._ensure_process, self.deadline)
