"""Thread pools with bounded queues, for calls that would hold up the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from springtide.app.serving.http.errors import busy

Result = TypeVar("Result")


class BoundedPool:
    """A few threads, and at most `max_waiting` calls that wait for one; a further call raises ApiError 503 `busy`."""

    def __init__(self, name: str, *, num_threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"springtide-{name}")
        self._limit = num_threads + max_waiting
        self._lock = threading.Lock()
        self._num_calls = 0

    async def run(self, call: Callable[[], Result]) -> Result:
        """Run the call in a thread; returns its result, or raises what it raises."""
        with self._lock:
            if self._num_calls >= self._limit:
                raise busy()
            self._num_calls += 1
        future = self._executor.submit(call)
        # counted until the thread has finished: a client that disconnects does not free the thread
        future.add_done_callback(self._free)
        return await asyncio.wrap_future(future)

    def _free(self, future: object) -> None:
        with self._lock:
            self._num_calls -= 1

    def close(self) -> None:
        """Start no further call; those in progress end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Pools:
    """The threads for everything that would hold up the event loop: a queue for each kind of work."""

    def __init__(self) -> None:
        self.remote = BoundedPool("remote", num_threads=16, max_waiting=256)
        self.lookups = BoundedPool("lookup", num_threads=2, max_waiting=128)
        self.neighbors = BoundedPool("neighbors", num_threads=1, max_waiting=32)
        self.retrievals = BoundedPool("retrieve", num_threads=2, max_waiting=128)
        self.files = BoundedPool("file", num_threads=2, max_waiting=64)
        self.snapshots = BoundedPool("snapshot", num_threads=1, max_waiting=8)
        self.commands = BoundedPool("command", num_threads=1, max_waiting=32)
        self.audits = BoundedPool("audit", num_threads=1, max_waiting=32)

    def close(self) -> None:
        """Start no further call; those in progress end by themselves."""
        for pool in vars(self).values():
            pool.close()
