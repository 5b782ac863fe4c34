"""One line that tells how the demo is doing."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

PLAIN_EVERY_SECONDS = 10.0  # where there is no terminal to redraw a line on


def format_status(status: Mapping[str, Any], best_auc: float | None) -> str:
    """The line for a status document."""
    window = (status.get("scores") or {}).get("window") or {}
    freshness = status.get("freshness_ms") or {}
    lags = [position.get("lag") for position in (status.get("positions") or {}).values()]
    lag = sum(each for each in lags if each is not None)
    parts = [
        f"{status.get('samples_trained') or 0:,} samples",
        f"{status.get('samples_per_second') or 0:,.0f}/s",
        f"AUC {format_number(window.get('auc'), '.3f')} of {format_number(best_auc, '.3f')}",
        f"logloss {format_number(window.get('logloss'), '.3f')}",
        f"fresh {format_number(freshness.get('p50'), '.0f')}/{format_number(freshness.get('p99'), '.0f')} ms",
        f"lag {lag:,}",
    ]
    if status.get("trainer") not in ("running", None):
        parts.append(f"{status['trainer']}: {status.get('reason') or ''}")
    return "  ".join(parts)


def format_number(value: float | None, form: str) -> str:
    """The number, or a dash."""
    return "-" if value is None else format(value, form)


class StatusLine:
    """Redraws one line on a terminal; elsewhere prints one now and then."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._alive = self._stream.isatty()
        self._printed = float("-inf")
        self._drawn = False

    def show(self, text: str) -> None:
        """The line as of now."""
        if self._alive:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]:<{width}}")
            self._drawn = True
        elif self._clock() - self._printed >= PLAIN_EVERY_SECONDS:
            self._printed = self._clock()
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def print(self, text: str) -> None:
        """A line that stays."""
        self._stream.write(f"\n{text}\n" if self._drawn else f"{text}\n")
        self._drawn = False
        self._stream.flush()
