"""The lowest priority that the system has for work that must not be felt by others."""

import os
from contextlib import suppress
from pathlib import Path

LOWEST = 19  # the nicest
AUTOGROUP = Path("/proc/self/autogroup")


def yield_to_others() -> None:
    """From now on this process runs where nobody else wants the processor; it cannot take that back.

    Where Linux schedules sessions instead of processes, niceness counts only within one: a process that leads a session
    of its own makes that nice too.
    """
    os.nice(LOWEST)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(LOWEST))
