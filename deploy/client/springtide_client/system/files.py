"""Files that appear whole or not at all, and survive a power loss where that is asked for."""

import errno
import os
from contextlib import suppress
from pathlib import Path

NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # may pass, and nothing was written


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """1. Write beside. 2. fsync. 3. Rename over `path`. 4. fsync the folder. Without `durable` 1 and 3 only."""
    draft = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        fsync_folder(path.parent)


def make_durable_folder(path: Path) -> None:
    """The folder is there also after a power loss, whoever made it."""
    path.mkdir(parents=True, exist_ok=True)
    for folder in path.absolute().parents:
        with suppress(OSError):  # somebody else's
            fsync_folder(folder)


def fsync_folder(path: Path) -> None:
    """The names in the folder are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
