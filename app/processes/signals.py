"""SIGTERM and Ctrl-C: handlers that set an event or exit, and handlers that are restored afterwards."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], None]


def stop_on_signals(*, grace_seconds: float | None = None) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, instead of ending the process.

    With `grace_seconds` the process exits with code 1 that long after the first signal, even if it is blocked, for
    instance by a broker that does not answer.
    """
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        if grace_seconds is not None and not stopping.is_set():
            end = threading.Timer(grace_seconds, os._exit, [1])
            end.daemon = True
            end.start()
        stopping.set()

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    return stopping


def exit_on_signals() -> None:
    """Make SIGTERM and SIGINT end the process at once with exit code 0: for a start-up that has no work to lose."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))


@contextmanager
def handled_signals(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install the handlers and restore the earlier ones at the end.

    Python allows handlers in the main thread only: in any other thread nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopSignals:
    """A context manager: the first SIGTERM or SIGINT sets `stopping`, a second SIGINT raises KeyboardInterrupt.

    Outside the main thread no signal is caught; `stop` sets the same flag.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._handlers = ExitStack()

    @property
    def stopping(self) -> bool:
        """True after a signal or `stop`."""
        return self._event.is_set()

    def stop(self) -> None:
        """Set `stopping`."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a stop; return True if there is one."""
        return self._event.wait(seconds)

    def __enter__(self) -> "StopSignals":
        self._handlers.enter_context(handled_signals(dict.fromkeys(STOP_SIGNALS, self._on_signal)))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._event.set()
