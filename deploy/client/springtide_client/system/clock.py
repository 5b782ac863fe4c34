"""Wall-clock time in the unit of the log."""

import time


def wall_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
