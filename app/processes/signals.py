"""What Ctrl-C and SIGTERM do to a command."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


def stop_on_signals(*, grace_seconds: float | None = None) -> threading.Event:
    """An event that the two signals set, instead of ending the process.

    With a grace the process ends anyway so long after the first signal, whatever it waits for (a broker that is gone).
    """
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        if grace_seconds is not None and not stopping.is_set():
            end = threading.Timer(grace_seconds, os._exit, [1])
            end.daemon = True
            end.start()
        stopping.set()

    install_handler(stop)
    return stopping


def exit_on_signals() -> None:
    """The two signals end the process at once with exit code 0: nothing has been done yet that could be lost."""
    install_handler(lambda *_: os._exit(0))


def install_handler(handler: Callable[[int, FrameType | None], None]) -> None:
    """Make it the handler of both."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
