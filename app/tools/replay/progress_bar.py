"""A progress bar on a terminal; silence elsewhere, but for the last line."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 28
EVERY_SECONDS = 0.2


class ProgressBar:
    """`[#######-----]  52,000  12,345/s`."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._began = clock()
        self._shown = self._began - EVERY_SECONDS
        self._alive = self._stream.isatty()

    def show(self, num: int, part: float) -> None:
        """Redraw, not too often; part is 0..1."""
        if not self._alive or self._clock() - self._shown < EVERY_SECONDS:
            return
        self._shown = self._clock()
        full = min(int(part * WIDTH), WIDTH)
        self._stream.write(f"\r[{'#' * full}{'-' * (WIDTH - full)}] {num:>11,}  {self.rate(num):>9,.0f}/s ")
        self._stream.flush()

    def end(self, num: int, topic: str) -> None:
        """The last line."""
        seconds = self._clock() - self._began
        lead = f"\r{' ' * (WIDTH + 30)}\r" if self._alive else ""
        self._stream.write(f"{lead}{num:,} messages into {topic} in {seconds:.1f} s ({self.rate(num):,.0f}/s)\n")
        self._stream.flush()

    def rate(self, num: int) -> float:
        """Messages a second so far."""
        return num / max(self._clock() - self._began, 1e-6)
