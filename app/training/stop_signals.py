"""SIGTERM and Ctrl-C as a wish to stop. A second Ctrl-C is a KeyboardInterrupt, for those who cannot wait."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context manager: inside it the first signal only sets `stopping`. Outside the main thread it catches none."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: dict[int, Any] = {}

    @property
    def stopping(self) -> bool:
        return self._event.is_set()

    def stop(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Whether somebody wants to stop, waited for so long."""
        return self._event.wait(seconds)

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._caught) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _caught(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._event.set()
