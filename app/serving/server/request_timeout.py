"""The time limit of slow clients: a request must arrive whole, and a response must be read on, within it.

Checked once a second for all connections, so that it costs a request nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

CHECK_INTERVAL_SECONDS = 1.0


class ClientTimeouts:
    """Time-outs of one connection that waits for its client. For the event loop's thread alone."""

    __slots__ = ("_unsent", "waiting_since")

    def __init__(self) -> None:
        self.waiting_since: float | None = None  # for the rest of a request; None between requests
        self._unsent: tuple[int, float] | None = None  # bytes that do not go out, since when

    def expired(
        self, now: float, seconds: float, *, reads_paused: bool, num_unsent_bytes: int
    ) -> Literal["request", "response"] | None:
        """Name the delay of a client longer than `seconds`: the rest of its request, or reading the response."""
        if self.waiting_since is not None:
            if reads_paused:  # the server itself does not read at the moment
                self.waiting_since = now
            elif now - self.waiting_since > seconds:
                return "request"
        if num_unsent_bytes == 0:
            self._unsent = None
        elif self._unsent is None or self._unsent[0] != num_unsent_bytes:
            self._unsent = (num_unsent_bytes, now)
        elif now - self._unsent[1] > seconds:
            return "response"
        return None


class TimedConnection(Protocol):
    """A connection with a time limit for its client."""

    def enforce_timeouts(self, now: float, seconds: float) -> None:
        """Close the connection if its client has kept the server waiting for longer than `seconds`."""


async def enforce_client_timeouts(connections: Callable[[], Iterable[TimedConnection]], seconds: float) -> None:
    """Check all connections again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(CHECK_INTERVAL_SECONDS, seconds / 4))
        for connection in list(connections()):
            connection.enforce_timeouts(loop.time(), seconds)
