"""Threads that share the work of one op, as PyTorch's intra-op pool does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

R = TypeVar("R")

MIN_SPLIT_KEYS = 4096  # fewer do not repay waking a second thread


class IntraOpPool:
    """`num_threads` threads, including the calling one, which takes the first part of the work."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def map(self, work: Callable[[int, int], R], num: int) -> list[R]:
        """The results of work(start, stop) for consecutive parts of 0..num, in their order."""
        if self._pool is None or num < MIN_SPLIT_KEYS:
            return [work(0, num)]
        (_, end), *others = pairwise(num * part // self._num_threads for part in range(self._num_threads + 1))
        futures = [self._pool.submit(work, start, stop) for start, stop in others]
        try:
            first = work(0, end)
        finally:
            wait(futures)  # also after an exception: no thread works on when this returns
        return [first, *(future.result() for future in futures)]

    def parallel_for(self, work: Callable[[int, int], None], num: int) -> None:
        """Call work(start, stop) for consecutive parts of 0..num."""
        for _ in self.map(work, num):
            pass

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
