"""One trainer per log: a file lock, which the kernel frees when its holder dies, and the age of the status file.

The lock works between processes of one machine. A trainer on another machine is recognized by its status file, which it
replaces every second.
"""

import fcntl
import os
import time
from pathlib import Path

from springtide.app.version_log.errors import LogBusyError
from springtide.app.version_log.trainer_status import boot_id, read_status

FRESH_SECONDS = 5.0  # a trainer with a younger status may be alive
WAIT_SECONDS = 6.0
DYING_SECONDS = 1.0  # a killed process holds its lock until its memory is freed
POLL_SECONDS = 0.02
HINT = "stop it, or start with --take-over"


class TrainerLock:
    """Held until `release` or the end of the process.

    It keeps two trainers from starting by mistake; correctness does not depend on it, for epochs fence the older one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def acquire(log_path: Path, *, take_over: bool = False, wait_seconds: float = WAIT_SECONDS) -> "TrainerLock":
        """Take a log's lock. LogBusyError if another trainer is alive, unless `take_over` replaces it."""
        path = log_path / "trainer.lock"
        if take_over:
            descriptor = _try_lock(path)
            return TrainerLock(_replace(path) if descriptor is None else descriptor)
        deadline = time.monotonic() + min(wait_seconds, DYING_SECONDS)
        while (descriptor := _try_lock(path)) is None:
            if time.monotonic() >= deadline:
                raise LogBusyError(f"another trainer ({_read_holder(path)}) is writing the log {log_path}: {HINT}")
            time.sleep(POLL_SECONDS)
        try:
            _wait_for_age(log_path, wait_seconds)
        except LogBusyError:
            os.close(descriptor)
            raise
        return TrainerLock(descriptor)

    @staticmethod
    def none() -> "TrainerLock":
        """Return a lock that holds nothing: of a rank beside the one that holds the log's lock."""
        return TrainerLock(-1)

    def release(self) -> None:
        """Allow the next trainer to start."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def wait_until_free(log_path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Return once no trainer of this machine holds the log's lock. LogBusyError if one still does after the wait.

    For a supervisor, which would start its trainer again and again: it asks before it starts anything.
    """
    path = log_path / "trainer.lock"
    deadline = time.monotonic() + wait_seconds
    while _is_held(path):
        if time.monotonic() >= deadline:
            raise LogBusyError(
                f"another trainer ({_read_holder(path)}) is writing the log {log_path}: stop it first, "
                "or give this one a log of its own with another name"
            )
        time.sleep(POLL_SECONDS)


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or one that the trainer itself will report
        return False
    return False


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # a trainer that took over has put another lock file in this place: its lock counts, not this one
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return _write_pid(descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _replace(path: Path) -> int:
    """Put a new lock file in place of one that is held: its holder keeps a lock on a file without a name."""
    draft = path.with_name(f".tmp-trainer.lock-{os.getpid()}")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(draft, path)
    return _write_pid(descriptor)


def _write_pid(descriptor: int) -> int:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"pid {os.getpid()}".encode(), 0)
    return descriptor


def _read_holder(path: Path) -> str:
    try:
        return path.read_text() or "pid unknown"
    except OSError:
        return "pid unknown"


def _wait_for_age(log_path: Path, wait_seconds: float) -> None:
    """Wait until the newest status is too old for a trainer on another machine to be alive."""
    deadline = time.monotonic() + wait_seconds
    while (status := read_status(log_path)) is not None:
        age_seconds = time.time() - status.updated_ms / 1000
        # here the lock was free: a status written on this machine is a dead trainer's
        here = status.boot_id in ("", boot_id())
        if here or status.clean_shutdown or age_seconds >= FRESH_SECONDS:
            return
        if time.monotonic() >= deadline:
            host = status.host or "another machine"
            raise LogBusyError(f"a trainer on {host} wrote its status {age_seconds:.1f} s ago: {HINT}")
        time.sleep(POLL_SECONDS)
