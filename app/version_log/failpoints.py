"""Failpoints: named places in the code where a test can kill or stop the process.

They do nothing unless the environment variable SPRINGTIDE_FAILPOINTS names a folder. A test arms a failpoint by putting
a file there, named like the failpoint with dashes for spaces, that holds a signal and the visit on which to send it:
`KILL 3`. The process renames the file before it signals itself, so only one process and one visit are hit.
"""

import functools
import os
import signal
import threading
from collections import Counter
from pathlib import Path

VARIABLE = "SPRINGTIDE_FAILPOINTS"

_visits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Send this thread the signal that a test armed for this place, if any."""
    if (folder := _folder()) is not None:
        _trigger(folder / name.replace(" ", "-"))


@functools.cache
def _folder() -> Path | None:
    name = os.environ.get(VARIABLE)
    return Path(name) if name else None


def _trigger(armed: Path) -> None:
    try:
        name, visit = armed.read_text().split()
        _visits[armed.name] += 1
        if _visits[armed.name] < int(visit):
            return
        armed.rename(armed.with_name(f"{armed.name}.struck-{os.getpid()}"))
    except (FileNotFoundError, ValueError):  # not armed, or the test is still writing the file
        return
    _visits[armed.name] = 0
    # to this very thread: with SIGSTOP it must not take another step before the signal is delivered
    signal.pthread_kill(threading.get_ident(), signal.Signals[f"SIG{name}"])
