"""The folder that a DynamicEmbedding spills into: locked while it lives, emptied at its start, deleted at its end."""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from springtide.embeddings.errors import SpillError

LOCK = "lock"
LOCK_SECONDS = 0.2
ROWS = "rows-"  # followed by a name of its own for each owner, so that none writes into another's


class SpillFolder:
    """Holds a lock that the kernel frees when its holder dies. `rows` is a path at which nothing exists yet."""

    def __init__(self, folder: Path) -> None:
        """1. Create it. 2. Check that it has only files of a spill. 3. Lock it. 4. Delete rows of a former owner.

        SpillError if one of these fails; other files are never changed.
        """
        self.folder = folder.absolute()
        self.rows = self.folder / f"{ROWS}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise SpillError(f"{folder} is a file: the spill needs a folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.folder.iterdir())
            others = [name for name in names if name != LOCK and not name.startswith(ROWS)]
            if others:
                raise SpillError(f"{folder} contains {others[0]!r}, which is not of a spill: choose an empty folder")
            self._lock = _acquire(self.folder / LOCK)
            self._lock_stat = (self.folder / LOCK).stat()
        except OSError as error:
            raise SpillError(f"{folder} cannot be used as a spill folder: {error.strerror or error}") from None
        for name in names:
            if name.startswith(ROWS):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def release(self) -> None:
        """Delete and unlock it, unless it was deleted and another created in its place."""
        if _is_same_file(self._lock_stat, self.folder / LOCK):
            (self.folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()  # fails if it is not empty
        self._lock.release()


def _acquire(path: Path) -> FileLock:
    """Lock this file. SpillError if another process or object has locked it."""
    lock = FileLock(path, thread_local=False)
    try:
        # retried for a moment: its holder may delete the file between our opening and our locking it
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise SpillError(
            f"{path.parent} is in use as the spill of another DynamicEmbedding: close that one, "
            "or choose another folder"
        ) from None
    return lock


def _is_same_file(before: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(before, path.stat())
    except OSError:
        return False
