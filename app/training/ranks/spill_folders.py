"""Each rank's spill: a folder of its own within the one of the configuration. No rows outlive a launch there."""

import re
import shutil
from pathlib import Path

from app.training.ranks.ranks import Ranks

_NAME = re.compile(r"rank-(\d+)")


def spill_folder(folder: Path, ranks: Ranks) -> Path:
    """Return this rank's folder; rank 0 removes those of ranks that a launch before had, and this one has not."""
    if ranks.is_first and folder.is_dir():
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and (ranks.is_alone or int(match[1]) >= ranks.num_ranks):
                shutil.rmtree(path, ignore_errors=True)
    return folder if ranks.is_alone else folder / f"rank-{ranks.rank}"
