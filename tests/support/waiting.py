"""Wait for a condition, with a deadline so generous that a busy machine does not exceed it."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.01

Value = TypeVar("Value")


def wait_until(
    condition: Callable[[], Value], what: str | Callable[[], str] = "", *, seconds: float = DEADLINE_SECONDS
) -> Value:
    """Call `condition` until it is true and return its value; AssertionError after `seconds`.

    `what` names the awaited event in the error; a callable is evaluated only then, so it can report the final state.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_timeout(what, seconds))
        time.sleep(POLL_SECONDS)
    return value


async def wait_until_async(
    condition: Callable[[], Value], what: str | Callable[[], str] = "", *, seconds: float = DEADLINE_SECONDS
) -> Value:
    """Like `wait_until`, and lets the event loop run between two calls of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_timeout(what, seconds))
        await asyncio.sleep(POLL_SECONDS)
    return value


def _timeout(what: str | Callable[[], str], seconds: float) -> str:
    return f"not within {seconds:g} s: {(what() if callable(what) else what) or 'the condition'}"
