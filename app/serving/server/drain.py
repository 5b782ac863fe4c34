"""Draining: how a process stops answering without cutting off a request that has arrived.

From the start of the drain each response carries `Connection: close`; an idle connection is closed after a while,
because a request may be on its way. Works on uvicorn's connections.
"""

import asyncio
import logging
from typing import NamedTuple, Protocol, cast

from uvicorn.server import ServerState

POLL_SECONDS = 0.02

logger = logging.getLogger(__name__)


class DrainPolicy(NamedTuple):
    """How long an idle connection is kept open, and how long a response may take."""

    idle_seconds: float
    response_seconds: float


# the server stops: nothing is gained by waiting for idle connections
IMMEDIATE = DrainPolicy(0.1, 2.0)
# other workers go on: a client that sends a request every few seconds never sees its connection close under one
GRACEFUL = DrainPolicy(5.0, 60.0)


class DrainableConnection(Protocol):
    """A connection that can be asked to close."""

    def close_after_response(self) -> None:
        """Make the response in progress, if any, the last one."""

    def close_if_idle(self) -> None:
        """Close the connection unless a request is in progress."""


class ConnectionDrain:
    """The drain of this process: not started, or under way by a policy. For the event loop's thread alone."""

    def __init__(self) -> None:
        self.policy: DrainPolicy | None = None

    @property
    def started(self) -> bool:
        """True once every response is the last of its connection."""
        return self.policy is not None

    def start(self, policy: DrainPolicy, state: ServerState) -> None:
        """Drain by this policy; a later call may only shorten the time."""
        for connection in list(cast(set[DrainableConnection], state.connections)):
            connection.close_after_response()
        if self.policy is None or policy.response_seconds < self.policy.response_seconds:
            self.policy = policy

    async def wait_closed(self, state: ServerState) -> None:
        """Return once no connection is left, or the policy's time is over; then responses are cancelled."""
        if self.policy is None:
            self.start(IMMEDIATE, state)
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        await asyncio.sleep(POLL_SECONDS)  # a connection that was just accepted is among the others afterwards
        connections = cast(set[DrainableConnection], state.connections)
        while connections:
            assert self.policy is not None
            elapsed = loop.time() - started_at
            if elapsed >= self.policy.response_seconds:
                break
            if elapsed >= self.policy.idle_seconds:
                for connection in list(connections):
                    connection.close_if_idle()
            await asyncio.sleep(POLL_SECONDS)
        if state.tasks:
            logger.warning("responses were cancelled at shutdown", extra={"number": len(state.tasks)})
            for task in list(state.tasks):
                task.cancel()
            await asyncio.wait(list(state.tasks), timeout=1.0)
