"""The wall clock, and how long to wait before the next try of what failed."""

import random
import time
from collections.abc import Callable


def wall_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Backoff:
    """The pauses of one task that is retried after failures. Sleeps nowhere; not thread-safe.

    A caller either sleeps for what `fail` returns, or polls `is_over`.
    """

    def __init__(
        self,
        first_seconds: float,
        longest_seconds: float,
        *,
        jitter: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`jitter` from 0 to 1: a random part of each pause, at most this large, is left out.

        With jitter, clients that lost one server do not return to it at the same instant.
        """
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self._jitter, self._clock = jitter, clock
        self._next_seconds = first_seconds
        self._over_at = float("-inf")

    def fail(self) -> float:
        """Begin the pause that follows a failure and return its seconds; the next pause is twice as long."""
        pause = self._next_seconds * (1.0 - self._jitter * random.random())
        self._next_seconds = min(2 * self._next_seconds, self._longest_seconds)
        self._over_at = self._clock() + pause
        return pause

    def pause_for(self, seconds: float) -> None:
        """Begin a pause of this length; the length of the next one stays."""
        self._over_at = self._clock() + seconds

    def succeed(self) -> None:
        """Let the next pause be the first again."""
        self._next_seconds = self._first_seconds

    @property
    def is_over(self) -> bool:
        """True when no pause is under way."""
        return self._clock() >= self._over_at

    @property
    def remaining_seconds(self) -> float:
        """The rest of the pause; 0 when it is over."""
        return max(0.0, self._over_at - self._clock())
