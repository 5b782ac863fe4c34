"""A progress bar on a terminal; elsewhere only its last line."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 28
INTERVAL_SECONDS = 0.2


class ProgressBar:
    """`[#######-----]  52,000  12,345/s`."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`stream`: by default stderr."""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._began = clock()
        self._shown_at = self._began - INTERVAL_SECONDS
        self._is_terminal = self._stream.isatty()
        self._num_shown = 0  # characters of the bar

    @property
    def is_terminal(self) -> bool:
        """True if the bar is drawn on a terminal."""
        return self._is_terminal

    def show(self, num: int, fraction: float, note: Callable[[], str] = str) -> None:
        """Redraw the bar, at most every INTERVAL_SECONDS; `fraction` from 0 to 1 is done. `note`: what follows it."""
        if not self._is_terminal or self._clock() - self._shown_at < INTERVAL_SECONDS:
            return
        self._shown_at = self._clock()
        full = min(int(fraction * WIDTH), WIDTH)
        bar = f"[{'#' * full}{'-' * (WIDTH - full)}] {num:>11,}  {self.rate(num):>9,.0f}/s {note()}"
        self._stream.write(f"\r{bar:<{self._num_shown}}")
        self._num_shown = len(bar)
        self._stream.flush()

    def erase(self) -> None:
        """Remove the bar."""
        if self._is_terminal:
            self._stream.write(f"\r{' ' * self._num_shown}\r")
            self._stream.flush()

    def end(self, num: int, topic: str) -> None:
        """Replace the bar by a last line."""
        self.erase()
        seconds = self._clock() - self._began
        self._stream.write(f"{num:,} messages into {topic} in {seconds:.1f} s ({self.rate(num):,.0f}/s)\n")
        self._stream.flush()

    def rate(self, num: int) -> float:
        """Return the messages per second so far."""
        return num / max(self._clock() - self._began, 1e-6)
