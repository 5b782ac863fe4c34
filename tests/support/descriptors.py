"""Open file descriptors that belong to one test, among those of the whole process."""

import os
from contextlib import suppress
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Return the paths under a folder that this process has open, deleted files included; one entry per descriptor."""
    prefix = f"{os.path.realpath(folder)}/"
    return sorted(path for path in _targets() if path.startswith(prefix))


def is_pipe_open(inode: int) -> bool:
    """Return True if this process has an end of the pipe open; `inode` is `os.fstat(end).st_ino`."""
    return f"pipe:[{inode}]" in _targets()


def _targets() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, as the listing's own
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
