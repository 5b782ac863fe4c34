"""Named moments at which tests end or stop a process. Nothing happens unless SPRINGTIDE_FAULTS names a folder.

A point is armed by a file in that folder, named for it with dashes, that holds a signal and on which visit it strikes:
`KILL 3`. Who strikes renames the file first, so that of many processes one is struck, once.
"""

import functools
import os
import signal
import threading
from collections import Counter
from pathlib import Path

VARIABLE = "SPRINGTIDE_FAULTS"

_visits: Counter[str] = Counter()


def failpoint(point: str) -> None:
    """This moment has come."""
    if (folder := _folder()) is not None:
        _strike(folder / point.replace(" ", "-"))


@functools.cache
def _folder() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def _strike(armed: Path) -> None:
    try:
        name, visit = armed.read_text().split()
        _visits[armed.name] += 1
        if _visits[armed.name] < int(visit):
            return
        armed.rename(armed.with_name(f"{armed.name}.struck-{os.getpid()}"))
    except (FileNotFoundError, ValueError):  # not armed, or not yet whole
        return
    _visits[armed.name] = 0
    # to this thread: one that is told to stop must not take another step meanwhile
    signal.pthread_kill(threading.get_ident(), signal.Signals[f"SIG{name}"])
