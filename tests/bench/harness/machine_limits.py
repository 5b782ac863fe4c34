"""The limits of this machine: bytes copied, cache lines read at known addresses, as measured; and its bfloat16."""

# L lines of 64 bytes, K reads
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from springtide.app.training.device import TrainDevice
from springtide.kernels.cpu.intrinsics.instructions import prefetch

WORDS = 8  # per line
AHEAD = 16
HAS_BFLOAT16 = TrainDevice().has_bfloat16  # elsewhere torch emulates it, a tenth as fast as float32


class ThreadSlices:
    """Threads that share a call, as the table's own do.

    `run(work, num)` calls work(start, stop) for each part of 0..num and waits.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def run(self, work: Callable[[int, int], object], num: int) -> None:
        bounds = [num * part // self.threads for part in range(self.threads + 1)]
        if self._pool is None:
            work(0, num)
        else:
            list(self._pool.map(work, bounds[:-1], bounds[1:]))


def copy_rate(slices: ThreadSlices, *, num_bytes: int = 256 << 20, repeats: int = 5) -> float:
    """Return the bytes per second of a memcpy, read and written bytes both counted."""
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)

    def copy(start: int, stop: int) -> None:
        np.copyto(target[start:stop], source[start:stop])

    return max(2 * num_bytes / _seconds(slices, copy, num_bytes) for _ in range(repeats))


def line_rate(slices: ThreadSlices, lines_K: npt.NDArray[np.int64], num_lines: int, *, repeats: int = 5) -> float:
    """Return the reads per second of one word of each given line of a large array; all cache misses overlap."""
    words = np.ones(num_lines * WORDS, np.uint64)
    flat_K = lines_K.astype(np.uint64)
    _read_lines(words, flat_K, 0, 1)

    def read(start: int, stop: int) -> None:
        _read_lines(words, flat_K, start, stop)

    return max(len(flat_K) / _seconds(slices, read, len(flat_K)) for _ in range(repeats))


def _seconds(slices: ThreadSlices, work: Any, num: int) -> float:
    start = time.perf_counter()
    slices.run(work, num)
    return time.perf_counter() - start


@njit(nogil=True, cache=True)
def _read_lines(words: Any, lines_K: Any, start: Any, stop: Any) -> Any:
    total = np.uint64(0)
    for k in range(start, stop):
        if k + AHEAD < stop:
            prefetch(words, lines_K[k + AHEAD] * np.uint64(WORDS))
        total += words[lines_K[k] * np.uint64(WORDS)]
    return total
