"""Each rank's spill: a folder of its own within the one of the configuration. No rows outlive a launch there."""

import re
import shutil
from pathlib import Path

from springtide.app.training.ranks.ranks import Ranks

_NAME = re.compile(r"rank-\d+")


def spill_folder(folder: Path, ranks: Ranks) -> Path:
    """Return this rank's folder; it has a folder of each epoch."""
    return folder if ranks.is_alone else folder / f"rank-{ranks.rank}"


def remove_former_spills(folder: Path, ranks: Ranks, epoch: int) -> None:
    """Remove what ranks of earlier launches have left on this machine, once all ranks of this epoch have a spill.

    The disk may be shared with ranks of other machines: their folders have this epoch.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        is_former_rank = _NAME.fullmatch(path.name) and not (path / str(epoch)).exists()
        is_of_one = not ranks.is_alone and path.name.isdigit() and int(path.name) < epoch
        if is_former_rank or is_of_one:
            shutil.rmtree(path, ignore_errors=True)
