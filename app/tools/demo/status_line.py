"""The demo's live status line."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

PLAIN_INTERVAL_SECONDS = 10.0  # where there is no terminal on which to redraw the line


def format_status(status: Mapping[str, Any], best_auc: float | None) -> str:
    """Return the line for a status document."""
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
    drift = (status.get("scores") or {}).get("drift") or {}
    if drift.get("level") == "large":
        parts.append(f"drift: {drift_reason(drift)}")
    if status.get("trainer") not in ("running", None):
        parts.append(f"{status['trainer']}: {status.get('reason') or ''}")
    return "  ".join(parts)


def drift_reason(drift: Mapping[str, Any]) -> str:
    """Return what has drifted far: label rates, scores, and the feature that did most."""
    found = []
    for label, each in (drift.get("labels") or {}).items():
        found += [f"rate of {label}"] * (each["label_rate"]["level"] == "large")
        found += [f"scores of {label}"] * (each["score"]["level"] == "large")
    features = [each["name"] for each in drift.get("features") or () if each["level"] == "large"]
    return ", ".join(found + features[:1])


def format_number(value: float | None, form: str) -> str:
    """Return the formatted number; a dash for None."""
    return "-" if value is None else format(value, form)


class StatusLine:
    """Redraws one line on a terminal; elsewhere prints a line every PLAIN_INTERVAL_SECONDS."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._printed_at = float("-inf")
        self._is_drawn = False

    def show(self, text: str) -> None:
        """Show the present line."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]:<{width}}")
            self._is_drawn = True
        elif self._clock() - self._printed_at >= PLAIN_INTERVAL_SECONDS:
            self._printed_at = self._clock()
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._stream.write(f"\n{text}\n" if self._is_drawn else f"{text}\n")
        self._is_drawn = False
        self._stream.flush()
