"""Where several workers take connections from one listener: the one that has fewest takes the next.

Left to themselves, the first that wakes takes all that wait. Knows no HTTP.
"""

import asyncio
import logging
import mmap
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

# a connection that the emptiest worker has not taken by then is taken by any
DEFER_SECONDS = 0.002
# after the system refused one (no file left), none is taken for so long
PAUSE_SECONDS = 0.1
NUM_SLOTS = 1_024

logger = logging.getLogger(__name__)


class ConnectionCounts:
    """How many connections each worker has, in memory that processes forked later share."""

    def __init__(self) -> None:
        self._counts = np.frombuffer(mmap.mmap(-1, 8 * NUM_SLOTS), np.int64)  # one more than there are; 0: no worker

    def set(self, worker: int, num_connections: int) -> None:
        """Of one's own."""
        self._counts[worker % NUM_SLOTS] = num_connections + 1

    def remove(self, worker: int) -> None:
        """It takes no more."""
        self._counts[worker % NUM_SLOTS] = 0

    def lowest(self) -> int:
        """Of any worker that takes some; 0 where there is none."""
        taking = self._counts[self._counts > 0]
        return int(taking.min()) - 1 if len(taking) else 0


class AcceptBalancer:
    """One worker's way to the listener. For the event loop's thread alone."""

    def __init__(self, crowd: ConnectionCounts, worker: int) -> None:
        self._crowd, self._worker = crowd, worker
        self._listener: socket.socket | None = None
        self._later: asyncio.TimerHandle | None = None
        self._entering: set[asyncio.Task[Any]] = set()

    def start(
        self, listener: socket.socket, num_connections: Callable[[], int], make: Callable[[], asyncio.Protocol]
    ) -> None:
        """Begin to take connections; `make` gives the protocol of each."""
        listener.setblocking(False)
        self._listener, self._num_connections, self._make = listener, num_connections, make
        self._loop = asyncio.get_running_loop()
        self._crowd.set(self._worker, num_connections())
        self._loop.add_reader(listener.fileno(), self._knocked)

    def close(self) -> None:
        """Take no more; what was taken enters."""
        self._crowd.remove(self._worker)
        if self._later is not None:
            self._later.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener = None

    def _knocked(self) -> None:
        num = self._num_connections() + len(self._entering)
        self._crowd.set(self._worker, num)
        if num > self._crowd.lowest():
            self._look_away(DEFER_SECONDS)
        else:
            self._take()

    def _look_away(self, seconds: float) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener.fileno())
        self._later = self._loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        assert self._listener is not None
        self._later = None
        self._loop.add_reader(self._listener.fileno(), self._knocked)
        self._take()

    def _take(self) -> None:
        assert self._listener is not None
        try:
            taken, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client left
        except OSError as error:
            logger.warning("no connection can be taken now", extra={"error": str(error)})
            if self._later is None:
                self._look_away(PAUSE_SECONDS)
            return
        taken.setblocking(False)
        entering: Coroutine[Any, Any, Any] = self._loop.connect_accepted_socket(self._make, taken)
        task = self._loop.create_task(entering)
        self._entering.add(task)
        task.add_done_callback(self._entered)
        self._crowd.set(self._worker, self._num_connections() + len(self._entering))

    def _entered(self, task: asyncio.Task[Any]) -> None:
        self._entering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("a connection ended before it began", extra={"error": str(error)})
