"""A child process that ends when its parent dies. Run as a file, it launches a program that does.

`python parent_death.py PARENT_PID PROGRAM ARGUMENTS...` becomes the program, which is killed when the parent dies.
Imports the standard library alone, so that it also runs isolated (`python -I -S`).
"""

import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5


def die_with_parent(parent: int, death_signal: signal.Signals = signal.SIGTERM) -> None:
    """Have this process sent `death_signal` when the process `parent` dies; exit at once if it already has.

    On Linux the kernel sends the signal when the parent's *thread* that forked this process ends. Elsewhere a daemon
    thread watches the parent.
    """
    if not _request_death_signal(death_signal):
        threading.Thread(target=_watch, args=(parent, death_signal), name="parent-watch", daemon=True).start()
    # the parent may have died before the request
    if os.getppid() != parent:
        sys.exit(1)


def _request_death_signal(death_signal: signal.Signals) -> bool:
    """Return True if the kernel will send the signal, as only Linux does."""
    try:
        import ctypes

        # macOS has no prctl: AttributeError
        return int(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))) == 0
    except (ImportError, AttributeError, OSError):
        return False


def _watch(parent: int, death_signal: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), death_signal)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), signal.SIGKILL)
    os.execv(sys.argv[2], sys.argv[2:])
