"""Files that appear whole or not at all, and survive a power loss where that is asked for."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """1. Write beside. 2. fsync. 3. Rename over `path`. 4. fsync the folder. Without `durable` 1 and 3 only."""
    draft = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with draft.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.rename(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """The names in the folder are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
