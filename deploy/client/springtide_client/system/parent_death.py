"""A child process that ends when its parent dies. Run as a file, it launches a program that does.

`python parent_death.py PARENT_PID PROGRAM ARGUMENTS...` becomes the program, which is killed when the parent dies.
Where the kernel does not do that, it stays the program's parent, and passes on what it is told.
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


def run_and_watch(parent: int, command: list[str]) -> int:
    """Run a program until it ends, or the process `parent`; return its exit status, negative for a signal's.

    SIGTERM and SIGINT are passed on. If this process is killed, the program goes on.
    """
    import subprocess  # takes longer to import than all the rest, and Linux does without

    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    while os.getppid() == parent:
        try:
            return child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    child.kill()
    return child.wait()


def main(parent: int, command: list[str]) -> None:
    if _request_death_signal(signal.SIGKILL):
        if os.getppid() != parent:
            sys.exit(1)
        os.execv(command[0], command)
    status = run_and_watch(parent, command)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
