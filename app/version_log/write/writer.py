"""Appends versions to the log: one thread encodes and writes, another makes durable."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from springtide_client.errors import LogError
from springtide_client.format.records import EPOCH_SHIFT, Tip, VersionMeta, version_name
from springtide_client.format.tensors import Array
from springtide_client.log.directory import LogDirectory, LogManifest
from springtide_client.schema import Schema
from springtide_client.system.files import NO_SPACE_ERRNOS

from app.processes.priority import yield_to_learning
from app.version_log.config import LogConfig
from app.version_log.disk_usage import folder_bytes
from app.version_log.errors import FencedError
from app.version_log.failpoints import failpoint
from app.version_log.write.encoder import PendingRecord, RecordEncoder
from app.version_log.write.epoch import Epoch, start_epoch
from app.version_log.write.segments import SegmentWriter
from app.version_log.write.trainer_lock import WAIT_SECONDS

Version = Tip

MAX_RETRIES = 3  # of an append that fails for another reason than a full disk
RETRY_DELAY_SECONDS = 0.5
STALL_TIMEOUT_SECONDS = 60.0  # a queue of which nothing is written for so long has failed

logger = logging.getLogger(__name__)


class LogWriter:
    """One epoch's pen. Appends come from one thread; everything else may be asked from any.

    Published = in the file, survives a kill. Durable = fsynced, and a look afterwards found no higher epoch: only on
    durable versions rest bases, receipts, and offsets reported elsewhere.
    """

    def __init__(self, config: LogConfig, epoch: Epoch) -> None:
        self.config = config
        self.directory = LogDirectory(config.path)
        self.manifest: LogManifest = epoch.manifest
        self.epoch = epoch.number
        self.start_tip: Tip | None = epoch.manifest.tip  # where the past ends; None in a new log
        self._lock = epoch.lock
        self.last_number = self.start_tip.number if self.start_tip else 0  # of the version appended or handed over last
        self._encoder = RecordEncoder(self.epoch, self.start_tip)
        self._count = 0
        self._published = self._durable = self.start_tip
        self._segments = SegmentWriter(config.path, epoch.number, min(config.segment_bytes, config.log_bytes // 8))
        self._queue: deque[PendingRecord] = deque()
        self._queued_bytes = 0
        self._error: Exception | None = None
        self._reason = ""
        self._log_bytes = 0
        self._changed = threading.Condition()
        self._syncing = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
            for name, run in (("log-writer", self._write_all), ("log-syncer", self._sync_often))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def open(
        config: LogConfig, *, schema: Schema, take_over: bool = False, wait_seconds: float = WAIT_SECONDS
    ) -> "LogWriter":
        """Take the next epoch and seal the past. LogBusyError where another trainer lives, unless `take_over`."""
        return LogWriter(config, start_epoch(Path(config.path), schema, take_over=take_over, wait_seconds=wait_seconds))

    @property
    def first_base_tip(self) -> Tip:
        """The version that a new log's first base stands for."""
        return Tip(self.epoch << EPOCH_SHIFT, self.epoch << EPOCH_SHIFT)

    def start_after(self, base: Tip) -> None:
        """Append after this base: called once, in a new log, when its first base is written."""
        assert self.start_tip is None, "the log has a past"
        with self._changed:
            self.start_tip = self._encoder.last = self._published = self._durable = base
            self.last_number = base.number

    def append(self, meta: VersionMeta, tensors: Mapping[str, Array]) -> Version:
        """Name the version and queue it for writing; the arrays are copied. Waits while the queue is full.

        Raises FencedError once a higher epoch is claimed, LogError when the disk refuses for too long.
        """
        pending = self._next(meta, tensors)
        with self._changed:
            earlier = tuple(self._queue)
        tip = self._encoder.encode(*earlier, pending)
        pending.frame = [b"".join(pending.frame)]
        self._put(pending)
        return tip

    def append_owned(self, meta: VersionMeta, tensors: Mapping[str, Array]) -> int:
        """`append` where the arrays are the log's from now on: nobody changes them. Returns the version's number.

        The caller's thread copies nothing and computes no checksum.
        """
        pending = self._next(meta, tensors)
        self._put(pending)
        return pending.number

    def _next(self, meta: VersionMeta, tensors: Mapping[str, Array]) -> PendingRecord:
        """The version, once the queue has room for it."""
        if self.start_tip is None:
            raise LogError("a new log begins with a base: write one, then call begin")
        self._raise_failure()
        durable = self._durable.number if self._durable else 0
        meta = msgspec.structs.replace(meta, durable=durable, created_ms=meta.created_ms or time.time_ns() // 1_000_000)
        pending = PendingRecord((self.epoch << EPOCH_SHIFT) + self._count + 1, meta, dict(tensors))
        with self._changed:
            room = self.config.queue_bytes - pending.num_bytes
            self._wait_until(lambda: not self._queue or self._queued_bytes <= room)
        return pending

    def _put(self, pending: PendingRecord) -> None:
        with self._changed:
            self._queue.append(pending)
            self._queued_bytes += pending.num_bytes
            self._changed.notify_all()
        self._count += 1
        self.last_number = pending.number

    @property
    def last_encoded(self) -> Tip | None:
        """The newest version that has its checksum, published or not: one handed over gets it a moment later."""
        return self._encoder.last

    @property
    def published(self) -> Tip | None:
        """The newest version that readers can see."""
        return self._published

    @property
    def durable(self) -> Tip | None:
        """The newest version that survives a power loss."""
        return self._durable

    @property
    def stall_reason(self) -> str:
        """Why versions do not reach the disk at the moment; empty while they do."""
        return str(self._error) if self._error else self._reason

    @property
    def is_full(self) -> bool:
        """Whether the log takes more than `log_bytes`: the stream should wait until the merger has made room."""
        return self._log_bytes > self.config.log_bytes

    @property
    def is_stalled(self) -> bool:
        """Whether versions wait for a disk that refuses them: the stream should wait with them."""
        return bool(self._reason and self._queue)

    @property
    def is_writing(self) -> bool:
        """Whether versions are on their way to the files; `sync` waits for them, or raises why they never come."""
        return bool(self._queue) and self._error is None

    def sync(self) -> None:
        """Everything appended so far is durable when this returns; raises like `append`."""
        with self._changed:
            self._wait_until(lambda: not self._queue)
        self._sync()
        self._raise_failure()

    def close(self) -> None:
        """Make everything durable, then let the next trainer start. After an error only the latter; never raises it."""
        if self._stopping.is_set():
            return
        try:
            self.sync()
        except LogError:
            logger.warning("the log was closed with versions not on the disk", extra={"reason": self.stall_reason})
        self._stop()
        self._lock.release()

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._segments.close()

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """With the condition held. A slow disk is waited for as long as it writes anything."""
        while not done():
            self._raise_failure()
            if not self._changed.wait(STALL_TIMEOUT_SECONDS):  # told of every version that is written
                raise LogError(f"the log cannot be written: {self._reason or 'the disk is too slow'}")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _is_fenced(self) -> bool:
        if self.directory.is_fenced(self.epoch):
            self._fail(FencedError(f"epoch {self.epoch + 1} is claimed: another trainer has taken over"))
        return self._error is not None

    def _run(self, do: Callable[[], None]) -> None:
        """A thread's life. Whatever ends it is told to who appends next: a queue that nobody empties must not wait."""
        try:
            do()
        except Exception as error:
            logger.exception("a thread of the log ended")
            self._fail(LogError(f"the log cannot be written: {type(error).__name__}: {error}"))

    def _write_all(self) -> None:
        yield_to_learning()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping.is_set())
                if not self._queue:
                    return
                pending = self._queue[0]
            try:
                tip = self._encoder.encode(pending)
            except Exception as error:
                self._fail(LogError(f"version {version_name(pending.number)} cannot be encoded: {error}"))
                return
            if not self._write(pending.frame):
                return
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= pending.num_bytes
                self._published = tip
                self._changed.notify_all()
            self._segments.start_writeback()

    def _write(self, frame: Sequence[bytes | memoryview]) -> bool:
        """Whether the frame is in a file. A full disk is waited for; other failures are tried again a few times."""
        failures = 0
        # the look is not what keeps a replaced trainer from harm, it only tells it sooner
        while not self._is_fenced():
            try:
                failpoint("after the look before an append")
                self._segments.write(frame)
                failpoint("after an append before its fsync")
                self._reason = ""
                return True
            except LogError as error:
                self._fail(error)
            except OSError as error:
                self._reason = f"an append failed: {error.strerror}"
                failures += error.errno not in NO_SPACE_ERRNOS
                if failures > MAX_RETRIES:
                    self._fail(LogError(self._reason))
                elif self._stopping.wait(RETRY_DELAY_SECONDS):
                    return False
        return False

    def _sync_often(self) -> None:
        yield_to_learning()
        while not self._stopping.wait(self.config.durable_seconds):
            self._log_bytes = folder_bytes(self.config.path)
            self._sync()

    def _sync(self) -> None:
        """1. Note what is published. 2. fsync. 3. Look for a higher epoch. 4. Call it durable."""
        with self._syncing:
            published = self._published
            if published is None or published == self._durable or self._error is not None:
                return
            try:
                self._segments.sync()
            except LogError as error:
                self._fail(error)
            failpoint("after an fsync before the look")
            if not self._is_fenced():
                self._durable = published
