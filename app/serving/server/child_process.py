"""A child made by fork: it has everything imported that its parent has, and shares the memory of it.

The parent must have one thread, and must not have begun to use what keeps threads of its own.
"""

import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable

from springtide_client.system.parent_death import die_with_parent

LOOK_SECONDS = 0.01
HANDLED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


class ChildProcess:
    """A child process that does one thing and ends."""

    def __init__(self, task: Callable[[], None]) -> None:
        """Begin; the child ends with its parent, and hears nothing of the parent's terminal.

        OSError where the system has no process left.
        """
        self.exit_code: int | None = None  # negative: of that signal
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        before: set[int | signal.Signals]
        # a signal may come before the child has let go of its parent's handlers: it waits
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries that sleep: see above
            try:
                self.pid = os.fork()
            except OSError:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                raise
        if self.pid == 0:
            _live(task, parent, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def send_signal(self, number: signal.Signals) -> None:
        """A signal, where it is alive."""
        if self.alive:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within the time."""
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return not self.alive


def _live(task: Callable[[], None], parent: int, mask: set[int | signal.Signals]) -> None:
    """In the child, to its end."""
    code = 1
    try:
        die_with_parent(parent)
        os.setsid()
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        task()
        code = 0
    except Exception:
        logger.exception("a child failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
