"""Read ahead pages of mapped files, so that the disk serves many reads at once instead of one page fault at a time.

Only a hint: where the kernel has no process_madvise, pages are read on first access.
"""

# N rows, P pages
import ctypes
import mmap
import os
import resource
import threading
from functools import lru_cache
from typing import Any

import numpy as np

from springtide_client.array_types import Int64Array
from springtide_client.format.tensors import Array

SYS_PROCESS_MADVISE = 440  # the same on every architecture
RANGES_PER_CALL = 1024  # the kernel's limit
SECTOR_BYTES = 512
COLD_PAGES_PER_ROW = 1 / 8  # pages read from the disk for each row above which readahead pays


class Readahead:
    """Requests pages while reads come from the disk, and none while the page cache serves them: a request costs too."""

    def __init__(self) -> None:
        self._call = _process_madvise(os.getpid())
        self._cold = threading.local()  # prefetches and immediate fetches run in different threads

    @property
    def is_worthwhile(self) -> bool:
        """True when this thread's last reads came from the disk."""
        return self._call is not None and getattr(self._cold, "last", False)

    def num_pages_read(self) -> int:
        """Return the pages that this thread has read from disks so far."""
        if not hasattr(resource, "RUSAGE_THREAD"):
            return 0
        return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock * SECTOR_BYTES // mmap.PAGESIZE

    def observe(self, num_pages: int, num_rows: int) -> None:
        """Record that reading `num_rows` rows took `num_pages` pages from the disk."""
        self._cold.last = num_pages > COLD_PAGES_PER_ROW * num_rows

    def request(self, column: Array, rows_N: Int64Array, num_rows: int = 1) -> None:
        """Read ahead the pages of these rows of a mapped column where that pays. Does not wait, releases the GIL.

        `num_rows`: how many from each on, of which the first and the last page are read.
        """
        if not len(rows_N) or not column.nbytes:
            return
        assert column.flags.c_contiguous
        address, width = column.ctypes.data, column.nbytes // len(column)
        ends_N = np.minimum(rows_N + num_rows, len(column))
        self.request_ranges(address + rows_N * width, (ends_N - rows_N) * width)

    def request_ranges(self, addresses_N: Int64Array, num_bytes: Int64Array | int) -> None:
        """Read ahead the first and the last page of each range of so many bytes, likewise."""
        if not self.is_worthwhile or not len(addresses_N):
            return
        first_N = addresses_N // mmap.PAGESIZE
        last_N = (addresses_N + num_bytes - 1) // mmap.PAGESIZE
        pages_P = np.unique(first_N if np.array_equal(first_N, last_N) else np.concatenate([first_N, last_N]))
        starts = np.flatnonzero(np.diff(pages_P, prepend=pages_P[0] - 2) != 1)
        ranges = np.empty((len(starts), 2), np.uint64)  # iovec: address, length
        ranges[:, 0] = pages_P[starts] * mmap.PAGESIZE
        ranges[:, 1] = np.diff(np.append(starts, len(pages_P))) * mmap.PAGESIZE
        for start in range(0, len(ranges), RANGES_PER_CALL):
            part = ranges[start : start + RANGES_PER_CALL]
            if self._call is None or self._call(part.ctypes.data, len(part)) < 0:
                self._call = None  # a kernel that refuses once always refuses
                return


@lru_cache(maxsize=1)
def _process_madvise(pid: int) -> Any:
    """Return `call(address of iovecs, their number)` for this process, or None where the kernel has no such call."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        pid_fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
    number, advice = ctypes.c_long(SYS_PROCESS_MADVISE), ctypes.c_int(mmap.MADV_WILLNEED)

    def call(address: int, num: int) -> int:
        result: int = syscall(
            number, ctypes.c_int(pid_fd), ctypes.c_void_p(address), ctypes.c_size_t(num), advice, ctypes.c_uint(0)
        )
        return result

    return call
