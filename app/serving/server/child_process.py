"""A child made by fork: it shares its parent's memory, with every module that the parent has imported.

The parent must have one thread, and must not have started anything that keeps threads of its own.
"""

import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable

from springtide_client.system.parent_death import die_with_parent

POLL_SECONDS = 0.01
HANDLED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


class ChildProcess:
    """A child process that runs one function and exits."""

    def __init__(self, main: Callable[[], None]) -> None:
        """Fork. The child dies with its parent, in a session of its own: the parent's terminal does not signal it.

        Raises OSError if the system has no process left.
        """
        self.exit_code: int | None = None  # negative: killed by that signal
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        mask: set[int | signal.Signals]
        # a signal must not reach the child while it still has its parent's handlers: it stays pending
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # sleeping threads of libraries
            try:
                self.pid = os.fork()
            except OSError:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                raise
        if self.pid == 0:
            _run_child(main, parent, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def alive(self) -> bool:
        """True while the child has not exited; reaps it when it has."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if the child is alive."""
        if self.alive:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait for the exit; returns False if the child is alive after the time."""
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return not self.alive


def _run_child(main: Callable[[], None], parent: int, mask: set[int | signal.Signals]) -> None:
    """The whole life of the child; does not return."""
    code = 1
    try:
        die_with_parent(parent)
        os.setsid()
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        main()
        code = 0
    except Exception:
        logger.exception("a worker failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
