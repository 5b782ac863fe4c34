"""How much of its disk a log takes."""

import os
from pathlib import Path


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files under a folder; a file deleted meanwhile counts 0."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += folder_bytes(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return total
