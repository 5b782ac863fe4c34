"""Accepts connections from a listener that several workers share: the worker with the fewest connections accepts next.

Without it, the worker that wakes up first accepts everything that waits. Knows no HTTP.
"""

import asyncio
import logging
import mmap
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

# a connection that the worker with the fewest has not accepted by then is accepted by any other
DEFER_SECONDS = 0.002
# how long to pause after the system refused to accept one (no file descriptor left)
PAUSE_SECONDS = 0.1
NUM_SLOTS = 1_024

logger = logging.getLogger(__name__)


class ConnectionCounts:
    """The number of connections of each worker, in memory shared with processes that are forked later."""

    def __init__(self) -> None:
        self._counts = np.frombuffer(mmap.mmap(-1, 8 * NUM_SLOTS), np.int64)  # the number plus one; 0: no such worker

    def set(self, worker: int, num_connections: int) -> None:
        """Set the worker's own number."""
        self._counts[worker % NUM_SLOTS] = num_connections + 1

    def remove(self, worker: int) -> None:
        """The worker accepts no more connections."""
        self._counts[worker % NUM_SLOTS] = 0

    def lowest(self) -> int:
        """The lowest number of any worker that accepts connections; 0 if there is none."""
        accepting = self._counts[self._counts > 0]
        return int(accepting.min()) - 1 if len(accepting) else 0


class AcceptBalancer:
    """One worker's share of the listener. For the event loop's thread alone."""

    def __init__(self, counts: ConnectionCounts, worker: int) -> None:
        self._counts, self._worker = counts, worker
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[Any]] = set()

    def start(
        self,
        listener: socket.socket,
        num_connections: Callable[[], int],
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        """Start to accept connections."""
        listener.setblocking(False)
        self._listener, self._num_connections, self._make_protocol = listener, num_connections, make_protocol
        self._loop = asyncio.get_running_loop()
        self._counts.set(self._worker, num_connections())
        self._loop.add_reader(listener.fileno(), self._on_readable)

    def close(self) -> None:
        """Accept no more; connections already accepted are set up."""
        self._counts.remove(self._worker)
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener = None

    def _on_readable(self) -> None:
        num = self._num_connections() + len(self._connecting)
        self._counts.set(self._worker, num)
        if num > self._counts.lowest():
            self._pause(DEFER_SECONDS)
        else:
            self._accept()

    def _pause(self, seconds: float) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener.fileno())
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        assert self._listener is not None
        self._timer = None
        self._loop.add_reader(self._listener.fileno(), self._on_readable)
        self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client disconnected
        except OSError as error:
            logger.warning("connections cannot be accepted for now", extra={"error": str(error)})
            if self._timer is None:
                self._pause(PAUSE_SECONDS)
            return
        accepted.setblocking(False)
        connecting: Coroutine[Any, Any, Any] = self._loop.connect_accepted_socket(self._make_protocol, accepted)
        task = self._loop.create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connected)
        self._counts.set(self._worker, self._num_connections() + len(self._connecting))

    def _connected(self, task: asyncio.Task[Any]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.info("a connection ended before it was set up", extra={"error": str(error)})
