"""Versions on their way to disk: a queue bounded in bytes, a thread that writes them, and a thread that fsyncs them."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from springtide.app.processes.tuning import take_short_slices, yield_to_learning
from springtide.app.version_log.errors import FencedError
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.write.ranks import Alone
from springtide.app.version_log.write.segment_writer import PendingRecord, RecordEncoder, SegmentWriter
from springtide_client.errors import LogError
from springtide_client.format.records import NO_STATE, Head, version_name
from springtide_client.system.files import NO_SPACE_ERRNOS

MAX_RETRIES = 3  # of an append that fails for any reason but a full disk
RETRY_DELAY_SECONDS = 0.5
STALL_TIMEOUT_SECONDS = 60.0  # a queue from which nothing was written for so long has failed

logger = logging.getLogger(__name__)


class AppendQueue:
    """Writes queued versions in order and makes them durable. `put` is called by one thread, the rest by any."""

    def __init__(
        self,
        segments: SegmentWriter,
        encoder: RecordEncoder,
        *,
        max_bytes: int,
        sync_seconds: float,
        is_fenced: Callable[[], bool],
        before_sync: Callable[[int], None],
        wait_for_state: Callable[[], None],
        on_durable: Callable[[int, int], None],
        role: Alone,
    ) -> None:
        """`is_fenced`: whether a higher epoch is claimed. `before_sync` gets the queued bytes, in the sync thread.

        `wait_for_state` returns once no exact state is waiting to be written. `on_durable` gets the number of each
        version that becomes durable, and what its meta says about its exact state. `role`: beside the writers of other
        ranks.
        """
        self.segments, self.encoder, self._role = segments, encoder, role
        self.published = self.durable = encoder.last  # the newest version that is written; that is fsynced
        self.failure: Exception | None = None  # why nothing is written any more
        self.stall_reason = ""  # why the disk does not take the next version at present
        self.cpu_seconds = 0.0  # of the writing thread
        self._max_bytes, self._sync_seconds = max_bytes, sync_seconds
        self._is_epoch_fenced, self._before_sync = is_fenced, before_sync
        self._wait_for_state, self._on_durable = wait_for_state, on_durable
        self._first_number = 0 if self.published is None else self.published.number  # what lies before it is durable
        self._begin = self._synced = self.published  # with which the epoch begins; the newest that is fsynced
        self._unsure: deque[tuple[Head, int]] = deque()  # published, not durable yet; where their exact state is
        self._states: set[int] = set()  # the versions whose exact state was written since the start
        self._queue: deque[PendingRecord] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._syncing = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
            for name, run in (("log-writer", self._write_all), ("log-syncer", self._sync_periodically))
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Return the number of versions that are not written yet."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Bytes of the versions that are not written yet."""
        return self._queued_bytes

    @property
    def is_stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stopping.is_set()

    def start_after(self, base: Head) -> None:
        """Let the first version follow this base. Call it before the first `put`."""
        with self._changed:
            self.encoder.last = self.published = self.durable = self._synced = self._begin = base

    def wait_for_room(self, num_bytes: int) -> None:
        """Wait until the queue can take so many bytes; an empty queue takes a version of any size."""
        with self._changed:
            room = self._max_bytes - num_bytes
            self._wait_until(lambda: not self._queue or self._queued_bytes <= room)

    def add_state(self, number: int) -> None:
        """The exact state of this version is on the disk now."""
        with self._changed:
            self._states.add(number)
            self._changed.notify_all()

    def put(self, version: PendingRecord) -> None:
        """Queue a version for writing."""
        with self._changed:
            self._queue.append(version)
            self._queued_bytes += version.num_bytes
            self._changed.notify_all()

    def encode(self, version: PendingRecord) -> Head:
        """Encode a version that is about to be put, in the caller's thread, after all that are queued."""
        with self._changed:
            earlier = tuple(self._queue)
        return self.encoder.encode(*earlier, version)

    def sync(self) -> None:
        """Return when everything that was put before the call is durable; raises the failure otherwise."""
        with self._changed:
            self._wait_until(lambda: not self._queue)
        self._wait_for_state()
        self._sync()
        while self.failure is None and self._must_wait_for_ranks():
            self._sync()
        self._sync()
        self.raise_failure()

    def _must_wait_for_ranks(self) -> bool:
        """Wait a moment for the other ranks, if something was written in this epoch that they have not fsynced."""
        published = self.published
        if published is None or published == self._begin or self._role.is_settled(published.number):
            return False
        self._role.wait_for_sync(published.number)
        return True

    def stop(self) -> None:
        """End both threads and close the files. What is queued is dropped."""
        self._stopping.set()
        self._role.stop_waiting.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.segments.close()

    def raise_failure(self) -> None:
        """Raise the FencedError or LogError that ended the writing, if any."""
        if self.failure is not None:
            raise self.failure

    def fail(self, error: Exception) -> None:
        """Stop writing because of this error; the first one counts."""
        with self._changed:
            is_first = self.failure is None
            self.failure = self.failure or error
            self._changed.notify_all()
        if is_first:
            self._role.failed(error)
            self._role.stop_waiting.set()

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """Wait with the condition held. A slow disk is waited for as long as it takes a version now and then."""
        while not done():
            self.raise_failure()
            if not self._changed.wait(STALL_TIMEOUT_SECONDS):  # notified of every version that is written
                raise LogError(f"the log cannot be written: {self.stall_reason or 'the disk is too slow'}")
        self.raise_failure()

    def _is_fenced(self) -> bool:
        if self._is_epoch_fenced():
            self.fail(FencedError("a higher epoch is claimed: another trainer has taken over this log"))
        self._hear_failure()
        return self.failure is not None

    def _hear_failure(self) -> None:
        """Fail if another rank has."""
        try:
            elsewhere = self._role.failure_elsewhere()
        except LogError as error:
            elsewhere = error
        if elsewhere is not None:
            self.fail(elsewhere)

    def _run(self, work: Callable[[], None]) -> None:
        """Run a thread's work. An error that ends it becomes the failure: no caller waits for a dead thread."""
        try:
            work()
        except Exception as error:
            logger.exception("a thread of the log ended")
            self.fail(LogError(f"the log cannot be written: {type(error).__name__}: {error}"))

    def _write_all(self) -> None:
        take_short_slices()  # normal priority: a version must not wait until learning leaves a processor idle
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping.is_set())
                if not self._queue:
                    return
                version = self._queue[0]
            try:
                head = self.encoder.encode(version)
            except LogError as error:
                self.fail(error)
                return
            except Exception as error:
                self.fail(LogError(f"version {version_name(version.number)} cannot be encoded: {error}"))
                return
            if version.follows_state:
                try:
                    self._wait_for_state()
                except LogError as error:
                    self.fail(error)
                    return
            if not self._write(version.frame):
                return
            self.cpu_seconds = time.thread_time()
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= version.num_bytes
                version.frame, version.tensors = [], {}  # an exact state that is still being written names the version
                self.published = head
                if version.meta.exact_state != NO_STATE:
                    self._unsure.append((head, version.meta.exact_state))
                self._changed.notify_all()
            self._role.written(head)
            self.segments.start_writeback()

    def _write(self, frame: Sequence[bytes | memoryview]) -> bool:
        """Write a record; return False if writing has failed or stops.

        Waits for a full disk as long as it takes; retries other errors MAX_RETRIES times.
        """
        failures = 0
        # the check only makes a replaced trainer notice sooner: readers ignore what it writes in any case
        while not self._is_fenced():
            try:
                failpoint("after the epoch check before an append")
                self.segments.write(frame)
                failpoint("after an append before its fsync")
                self.stall_reason = ""
                self._role.stalled("")
                return True
            except LogError as error:
                self.fail(error)
            except OSError as error:
                self.stall_reason = f"an append failed: {error.strerror}"
                self._role.stalled(self.stall_reason)
                failures += error.errno not in NO_SPACE_ERRNOS
                if failures > MAX_RETRIES:
                    self.fail(LogError(self.stall_reason))
                elif self._stopping.wait(RETRY_DELAY_SECONDS):
                    return False
        return False

    def _sync_periodically(self) -> None:
        yield_to_learning()
        while not self._stopping.wait(self._sync_seconds):
            self._before_sync(self.queued_bytes)
            self._hear_failure()
            self._sync()

    def _sync(self) -> None:
        """1. Note what is published. 2. fsync. 3. Check for a higher epoch. 4. Call durable what is exact of it.

        And of that what the other ranks have fsynced: their reports are read before the check.
        """
        with self._syncing:
            with self._changed:
                published = self.published
            if published is None or self.failure is not None:
                return
            must_sync = published != self._synced
            try:
                if must_sync:
                    self.segments.sync()
                    self._role.synced(published.number)
                limit = min(published.number, self._role.durable_limit()) if self._unsure else published.number
                newest = self._newest_exact(limit)
                if must_sync or newest is not None:
                    failpoint("after an fsync before the epoch check")
                    if self._is_fenced():
                        return
                    self._synced = published
                if newest is not None:
                    self._declare_durable(newest)
                self._role.settle(limit)
            except LogError as error:
                self.fail(error)

    def _declare_durable(self, newest: tuple[Head, int]) -> None:
        while self._unsure.popleft() != newest:
            pass
        self.durable = newest[0]
        with self._changed:
            self._states = {number for number in self._states if number >= newest[1]}
        self._role.durable(newest[0])
        self._on_durable(newest[0].number, newest[1])

    def _newest_exact(self, limit: int) -> tuple[Head, int] | None:
        """Return the newest version up to this one that a restart can continue from, if it is not durable yet."""
        newest = None
        with self._changed:
            for head, exact_state in self._unsure:
                is_there = exact_state <= self._first_number or exact_state in self._states
                if head.number <= limit and is_there:
                    newest = head, exact_state
        return newest
