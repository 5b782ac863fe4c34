"""The lock under which files of a log are deleted, and under which a version is pinned."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from springtide_client.system.file_lock import file_lock

LOCK_NAME = "retention.lock"
RETRY_SECONDS = 0.02


@contextmanager
def retention_lock(log_path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the lock and yield True; False if another process held it all the time. The kernel frees it at a kill."""
    deadline = time.monotonic() + wait_seconds

    def wait() -> bool:
        time.sleep(RETRY_SECONDS)
        return time.monotonic() > deadline

    with file_lock(Path(log_path) / LOCK_NAME, wait) as is_held:
        yield is_held
