"""A lock between processes: one holder at a time, and the kernel releases it when the holder dies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def file_lock(path: Path, wait: Callable[[], object]) -> Iterator[bool]:
    """Hold the lock file `path`, which is created where it is missing, and yield True.

    While another process holds it, `wait` is called between two tries. Once `wait` returns True the block runs without
    the lock and gets False; what `wait` raises ends the waiting.
    """
    lock = FileLock(path, thread_local=False)
    while True:
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            if wait() is True:
                yield False
                return
    try:
        yield True
    finally:
        lock.release()
