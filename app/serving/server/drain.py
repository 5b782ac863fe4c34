"""How a process stops answering: what was asked is answered, and whoever may ask again is told to connect anew.

An answer says `Connection: close`; a connection that asks nothing is closed after a while, for a request may be on its
way just then. Knows connections as uvicorn's.
"""

import asyncio
import logging
from typing import NamedTuple, Protocol, cast

from uvicorn.server import ServerState

LOOK_SECONDS = 0.02

logger = logging.getLogger(__name__)


class DrainPolicy(NamedTuple):
    """How long an idle connection may still ask, and how long an answer may still take."""

    idle_seconds: float
    answer_seconds: float


# nobody answers afterwards: whoever is idle need not wait for that
IMMEDIATE = DrainPolicy(0.1, 2.0)
# others go on: those who ask at least every few seconds never see a connection close under their question
GRACEFUL = DrainPolicy(5.0, 60.0)


class DrainableConnection(Protocol):
    """A connection that can be asked to end."""

    def close_after_response(self) -> None:
        """The answer in the making, if any, is the last."""

    def close_if_idle(self) -> None:
        """Close, unless something was asked."""


class ConnectionDrain:
    """Whether and how this process leaves. For the event loop's thread alone."""

    def __init__(self) -> None:
        self.policy: DrainPolicy | None = None

    @property
    def started(self) -> bool:
        """Whether answers are the last of their connections."""
        return self.policy is not None

    def start(self, manner: DrainPolicy, state: ServerState) -> None:
        """Leave in that manner: from now on an answer is the last. A hastier manner may follow."""
        for connection in list(cast(set[DrainableConnection], state.connections)):
            connection.close_after_response()
        if self.policy is None or manner.answer_seconds < self.policy.answer_seconds:
            self.policy = manner

    async def wait_closed(self, state: ServerState) -> None:
        """Return once no connection is left, or the manner's time is over; then answers are cut short."""
        if self.policy is None:
            self.start(IMMEDIATE, state)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(LOOK_SECONDS)  # who was let in just now is among the connections then
        connections = cast(set[DrainableConnection], state.connections)
        while connections:
            assert self.policy is not None
            left = loop.time() - began
            if left >= self.policy.answer_seconds:
                break
            if left >= self.policy.idle_seconds:
                for connection in list(connections):
                    connection.close_if_idle()
            await asyncio.sleep(LOOK_SECONDS)
        if state.tasks:
            logger.warning("answers were cut short", extra={"number": len(state.tasks)})
            for task in list(state.tasks):
                task.cancel()
            await asyncio.wait(list(state.tasks), timeout=1.0)
