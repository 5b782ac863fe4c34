"""Split a call over threads: each takes a slice of the keys, as the table's own threads do."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class ThreadSlices:
    """`run(work, num)` calls work(start, stop) for each part of 0..num and waits."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def run(self, work: Callable[[int, int], object], num: int) -> None:
        bounds = [num * part // self.threads for part in range(self.threads + 1)]
        if self._pool is None:
            work(0, num)
        else:
            list(self._pool.map(work, bounds[:-1], bounds[1:]))
