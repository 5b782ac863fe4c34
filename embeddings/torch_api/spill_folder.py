"""The folder that a DynamicEmbedding spills into: its own while it lives, emptied when it comes, gone when it goes."""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from embeddings.errors import SpillError

LOCK = "lock"
LOCK_SECONDS = 0.2
ROWS = "rows-"  # each owner's rows have a name of their own: nobody writes into another's


class SpillFolder:
    """Holds a lock that the kernel frees when its holder dies. `rows` is a path where nothing is yet."""

    def __init__(self, folder: Path) -> None:
        """1. Make it. 2. See that it holds nothing of others. 3. Lock it. 4. Remove what an owner before left.

        SpillError where one of them fails: nothing of others is touched.
        """
        self.folder = folder.absolute()
        self.rows = self.folder / f"{ROWS}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise SpillError(f"{folder} is a file: name a folder to spill into")
            self.folder.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.folder.iterdir())
            strange = [name for name in names if name != LOCK and not name.startswith(ROWS)]
            if strange:
                raise SpillError(f"{folder} is no spill's folder, it holds {strange[0]!r}: name an empty or a new one")
            self._lock = _acquire(self.folder / LOCK)
            self._lock_stat = (self.folder / LOCK).stat()
        except OSError as error:
            raise SpillError(f"{folder} cannot be a spill's folder: {error.strerror or error}") from None
        for name in names:
            if name.startswith(ROWS):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def release(self) -> None:
        """Removes it, unless somebody did and made another in its place."""
        if _is_same_file(self._lock_stat, self.folder / LOCK):
            (self.folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()  # where it is empty
        self._lock.release()


def _acquire(path: Path) -> FileLock:
    """Lock the file of this name; SpillError where another process or object holds it."""
    lock = FileLock(path, thread_local=False)
    try:
        # tried again for a moment: its holder may remove the file between our opening and our locking it
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise SpillError(
            f"{path.parent} is the spill of another DynamicEmbedding that is in use: close that one, "
            "or name another folder"
        ) from None
    return lock


def _is_same_file(before: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(before, path.stat())
    except OSError:
        return False
