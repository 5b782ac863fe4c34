"""How much of its disk a log takes."""

import os
from pathlib import Path


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files under a folder: one with several names counts once, one deleted meanwhile 0."""
    return _folder_bytes(folder, set())


def _folder_bytes(folder: Path, linked: set[tuple[int, int]]) -> int:
    """`linked`: device and inode of files with several names that are counted already."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += _folder_bytes(Path(entry.path), linked)
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    inode = stat.st_dev, stat.st_ino
                    total += 0 if inode in linked else stat.st_size
                    if stat.st_nlink > 1:
                        linked.add(inode)
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return total
