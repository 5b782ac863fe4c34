"""The threads that share the work of a table's verbs."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")

SPLIT_KEYS = 4096  # fewer are not worth a second thread


class Workers:
    """So many threads; with one the work is done by whoever asks for it."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads) if num_threads > 1 else None

    def map(self, work: Callable[[int, int], R], num: int) -> Iterable[R]:
        """What work(start, stop) gives for parts of 0..num, in their order."""
        if self._pool is None or num < SPLIT_KEYS:
            return [work(0, num)]
        bounds = [num * part // self._num_threads for part in range(self._num_threads + 1)]
        return self._pool.map(work, bounds[:-1], bounds[1:])

    def spread(self, work: Callable[[int, int], None], num: int) -> None:
        """work(start, stop) for parts of 0..num is done when this returns."""
        for _ in self.map(work, num):
            pass

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
