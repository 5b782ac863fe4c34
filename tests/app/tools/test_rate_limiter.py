"""A rate limiter keeps the mean rate, and skips time that is not to be caught up."""

import threading

from springtide.app.tools.rate_limiter import RateLimiter


def test_a_late_sender_catches_up() -> None:
    now = 100.0
    limiter = RateLimiter(10.0, clock=lambda: now)
    assert limiter.seconds_until(5) == 0.5
    now += 2.0
    assert limiter.seconds_until(5) == -1.5
    assert limiter.seconds_until(20) == 0.0


def test_skipped_time_is_not_caught_up() -> None:
    now = 100.0
    limiter = RateLimiter(10.0, clock=lambda: now)
    now += 3.0
    limiter.skip(2.0)
    assert limiter.seconds_until(10) == 0.0


def test_without_a_rate_nothing_waits() -> None:
    limiter = RateLimiter(None)
    assert limiter.seconds_until(10**9) == 0.0
    limiter.wait(10**9, threading.Event())
