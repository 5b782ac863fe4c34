"""Write exact states of the dense net beside the log, without holding up versions or learning.

A thread writes one state at a time: its file a piece at a time with pauses, fsync, then the manifest with the version's
checksum, then a rename. Only after the folder's fsync does the state count: versions may rest on it then.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from springtide.app.processes.tuning import yield_to_learning
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.read.exact_state import StateManifest
from springtide.app.version_log.write.segment_writer import PendingRecord
from springtide_client.errors import LogError
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import Array, Arrays, shape_of
from springtide_client.log.base import MANIFEST, STATE, FileChecksum
from springtide_client.log.listing import state_name
from springtide_client.system.files import fsync_folder, write_synced

PIECE_BYTES = 1 << 19  # written at a time
RETRY_SECONDS = 1.0
STALL_TIMEOUT_SECONDS = 60.0  # a disk that took nothing for so long has failed

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class PendingState:
    """The exact state of a version, as of its checkpoint: `arrays` must not change until it is `done`."""

    arrays: Arrays
    version: PendingRecord | None = None
    done: threading.Event = field(default_factory=threading.Event)
    urgent: bool = False  # a caller waits for it: write it without pauses

    @property
    def num_bytes(self) -> int:
        """The size of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class StateWriter:
    """Writes one state at a time in a thread of its own, which starts with the first."""

    def __init__(
        self, log_path: Path, *, on_written: Callable[[int], None], has_log_failed: Callable[[], bool]
    ) -> None:
        """`on_written` is called with the version's number once its state survives a power loss.

        `has_log_failed`: whether versions are not written any more, so that none gets a checksum.
        """
        self._log_path, self._on_written, self._has_log_failed = log_path, on_written, has_log_failed
        self._state: PendingState | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None
        self.cpu_seconds = 0.0  # of the newest state written
        self.stall_reason = ""  # why the disk does not take the state at present
        self._num_pieces = 0  # written so far: wait as long as there are more of them

    @property
    def is_idle(self) -> bool:
        """True if the next state may be put."""
        return self._state is None

    def put(self, state: PendingState) -> None:
        """Write this state, which belongs to a version that is queued. Waits for the one before."""
        self.wait()
        with self._changed:
            self._state = state
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-state-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, stall_timeout_seconds: float | None = STALL_TIMEOUT_SECONDS) -> None:
        """Return once no state is waiting to be written, which is then done without pauses.

        LogError if it failed, or if the disk takes nothing for so long (None: wait without end).
        """
        with self._changed:
            if self._state is not None:
                self._state.urgent = True
            while self._state is not None and self.failure is None and not self._stopping.is_set():
                before = self._num_pieces
                if not self._changed.wait(stall_timeout_seconds) and self._num_pieces == before:
                    raise LogError(f"the exact state of the net cannot be written: {self.stall_reason}")
        if self.failure is not None:
            raise LogError(f"the exact state of the net cannot be written: {self.failure}")

    def stop(self) -> None:
        """End the thread; a state that is not complete is dropped."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        yield_to_learning()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state is not None or self._stopping.is_set())
                state = self._state
            if self._stopping.is_set() or state is None:
                return
            before = time.thread_time()
            try:
                is_written = self._write_until_done(state)
            except Exception as error:
                logger.exception("the thread that writes exact states ended")
                self.failure, is_written = error, False
            self.cpu_seconds = time.thread_time() - before
            with self._changed:
                self._state = None if self.failure is None else state
                self._changed.notify_all()
            if not is_written:
                return

    def _write_until_done(self, state: PendingState) -> bool:
        """Write a state, again and again while the disk refuses; False if the writer is stopped first."""
        assert state.version is not None
        number = state.version.number
        draft = self._log_path / f".tmp-{state_name(number)}-{os.getpid()}"
        while not self._stopping.is_set() and not self._has_log_failed():
            try:
                if self._write(state, draft):
                    self._on_written(number)
                    self.stall_reason = ""
                    state.done.set()
                    return True
            except OSError as error:
                self.stall_reason = f"an exact state cannot be written: {error.strerror}"
                logger.warning("an exact state cannot be written now", extra={"reason": str(error)})
                self._stopping.wait(RETRY_SECONDS)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        self.stall_reason = ""  # the log has failed: nobody waits for the disk any more
        return False

    def _write(self, state: PendingState, draft: Path) -> bool:
        """1. Write and fsync the file. 2. Wait for the version's checksum. 3. Manifest, fsync, rename, fsync."""
        assert state.version is not None
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        writer = TensorWriter(draft / STATE, {name: shape_of(array) for name, array in state.arrays.items()})
        try:
            for name, array in state.arrays.items():
                if not self._write_array(writer, name, array, state):
                    return False
            failpoint("while an exact state is written")
        finally:
            writer.close()
        while not state.version.encoded.wait(0.1):
            if self._stopping.is_set() or self._has_log_failed():
                return False
        head = state.version.head
        assert head is not None
        assert writer.crc32 is not None
        file = FileChecksum(writer.num_bytes, writer.crc32)
        manifest = StateManifest(number=head.number, checksum=head.checksum, file=file)
        write_synced(draft / MANIFEST, encode_checksummed_json(manifest))
        fsync_folder(draft)
        failpoint("before an exact state is renamed")
        draft.rename(self._log_path / state_name(head.number))
        failpoint("after an exact state is renamed")
        fsync_folder(self._log_path)
        return True

    def _write_array(self, writer: TensorWriter, name: str, array: Array, state: PendingState) -> bool:
        """Write an array piece by piece; between two pieces as long a pause as the piece took. False if stopped."""
        rows = array.reshape(1) if array.ndim == 0 else array
        step = max(1, PIECE_BYTES // max(1, rows[:1].nbytes))
        for start in range(0, len(rows), step):
            began = time.monotonic()
            writer.write(name, start, rows[start : start + step])
            self._num_pieces += 1
            if not state.urgent and self._stopping.wait(time.monotonic() - began):
                return False
        return True
