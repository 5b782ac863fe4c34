"""SIGTERM and Ctrl-C, and the death of a parent: handlers that set an event or exit, and are restored afterwards."""

import os
import select
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from springtide_client.system.parent_death import die_with_parent

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], None]


class SignalEvent(threading.Event):
    """An event that a signal handler may set, also while the thread that it interrupts is in `wait`.

    A `threading.Event` has a lock: a handler that runs while its own thread holds that lock waits for it for ever. This
    one has a pipe instead, which becomes readable.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with suppress(BlockingIOError):  # full: readable all the more
            os.write(self._write_end, b"\0")

    def clear(self) -> None:
        self._is_set = False
        with suppress(BlockingIOError):
            while os.read(self._read_end, 1 << 16):
                pass

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            poll = select.poll()
            poll.register(self._read_end, select.POLLIN)
            poll.poll(None if timeout is None else max(0.0, 1000 * timeout))
        return self._is_set


def stop_on_signals(*, grace_seconds: float | None = None) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, instead of ending the process.

    With `grace_seconds` the process exits with code 1 that long after the first signal, even if it is blocked, for
    instance by a broker that does not answer.
    """
    stopping = SignalEvent()

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
        self._event = SignalEvent()
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


PARENT_VARIABLE = "SPRINGTIDE_PARENT"


def child_environment() -> dict[str, str]:
    """Return the environment for a child that calls `die_with_supervisor`."""
    return dict(os.environ) | {PARENT_VARIABLE: str(os.getpid())}


def die_with_supervisor() -> None:
    """In a supervised child: be sent SIGTERM when the supervisor dies. In any other process: do nothing.

    The variable is removed, so that the child's own children do not inherit it.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None:
        die_with_parent(int(parent))
