"""Files that appear whole or not at all, survive a power loss where the caller asks for that, and locks on them."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

# the disk may have room again later, and nothing was written
NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

# macOS's fsync leaves the bytes in the disk's own cache, which a power loss empties
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
NO_FULL_SYNC_ERRNOS = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)  # of file systems without it, as on a network


def sync_descriptor(descriptor: int) -> None:
    """Return once the bytes of an open file, or the names of a folder, are on the disk; OSError if they are not."""
    if FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in NO_FULL_SYNC_ERRNOS:
                raise
    os.fsync(descriptor)


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to. It is renamed to `path` at the end, or removed after an error.

    A killed process leaves its draft, whose name is `draft_name`.
    """
    draft = path.with_name(draft_name(path.name, os.getpid()))
    try:
        yield draft
        draft.rename(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def draft_name(name: str, pid: int) -> str:
    """Return the name of a draft of the file `name`: threads and processes never share one."""
    return f".tmp-{name}-{threading.get_native_id()}-{pid}"


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """1. Write a draft. 2. fsync it. 3. Rename it to `path`. 4. fsync the folder. Without `durable` only 1 and 3."""
    with draft_of(path) as draft:
        if durable:
            write_synced(draft, content)
        else:
            draft.write_bytes(content)
    if durable:
        fsync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and fsync it; its name is on the disk after `fsync_folder`."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        sync_descriptor(file.fileno())


def sync_file(path: Path) -> None:
    """fsync a file; one that was deleted meanwhile needs none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def make_durable_folder(path: Path) -> None:
    """Create the folder and its parents such that a power loss does not remove them."""
    path.mkdir(parents=True, exist_ok=True)
    for folder in path.absolute().parents:
        with suppress(OSError):  # owned by another user
            fsync_folder(folder)


def fsync_folder(path: Path) -> None:
    """Return once the names in the folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def read_fully(descriptor: int, length: int, offset: int) -> bytes:
    """Return `length` bytes from `offset` on; fewer only at the end of the file."""
    data = os.pread(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    while data and sum(map(len, pieces)) < length:
        data = os.pread(descriptor, length - sum(map(len, pieces)), offset + sum(map(len, pieces)))
        pieces.append(data)
    return b"".join(pieces)


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
