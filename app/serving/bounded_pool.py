"""Threads for what must not stop the event loop, with a bounded queue in front."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.serving.http.errors import busy

Result = TypeVar("Result")


class BoundedPool:
    """A few threads and the calls that wait for them; one more than `max_waiting` is refused with 503 `busy`."""

    def __init__(self, name: str, *, num_threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"springtide-{name}")
        self._limit = num_threads + max_waiting
        self._lock = threading.Lock()
        self._taken = 0

    async def run(self, call: Callable[[], Result]) -> Result:
        """The call's result; what it raises is raised."""
        with self._lock:
            if self._taken >= self._limit:
                raise busy()
            self._taken += 1
        future = self._executor.submit(call)
        # counted until the thread is done with it: an asker who leaves does not free a thread
        future.add_done_callback(self._free)
        return await asyncio.wrap_future(future)

    def _free(self, future: object) -> None:
        with self._lock:
            self._taken -= 1

    def close(self) -> None:
        """Begin no further call; the ones in flight end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)
