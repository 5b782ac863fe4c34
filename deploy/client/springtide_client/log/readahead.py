"""Pages of mapped files asked for before they are touched: the disk has many reads at once, not one after another.

A hint, and no more: where the kernel knows no process_madvise, pages are read as they are touched.
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
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

SYS_PROCESS_MADVISE = 440  # the same on every architecture
RANGES_A_CALL = 1024  # the kernel takes no more
SECTOR_BYTES = 512
COLD_SHARE = 1 / 8  # pages read from the disk for each row, from which on it is worth asking


class Readahead:
    """Asks while the disk is being read, and is silent while the page cache answers: a page asked in vain costs too."""

    def __init__(self) -> None:
        self._call = _process_madvise(os.getpid())
        self._cold = threading.local()  # a recall ahead and one at once are threads of their own

    @property
    def is_worthwhile(self) -> bool:
        """Whether this thread's last reads came from the disk."""
        return self._call is not None and getattr(self._cold, "last", False)

    def num_pages_read(self) -> int:
        """Pages that this thread has read from disks so far."""
        if not hasattr(resource, "RUSAGE_THREAD"):
            return 0
        return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock * SECTOR_BYTES // mmap.PAGESIZE

    def observe(self, num_pages: int, num_rows: int) -> None:
        """So many pages were read from the disk for so many rows."""
        self._cold.last = num_pages > COLD_SHARE * num_rows

    def request(self, column: Array, rows_N: Int64Array) -> None:
        """Read ahead the pages of these rows of a mapped column where that pays. Does not wait, releases the GIL."""
        if not self.is_worthwhile or not len(rows_N) or not column.nbytes:
            return
        assert column.flags.c_contiguous
        address, width = column.ctypes.data, column.nbytes // len(column)
        first_N = (address + rows_N * width) // mmap.PAGESIZE
        last_N = (address + (rows_N + 1) * width - 1) // mmap.PAGESIZE
        pages_P = np.unique(first_N if np.array_equal(first_N, last_N) else np.concatenate([first_N, last_N]))
        starts = np.flatnonzero(np.diff(pages_P, prepend=pages_P[0] - 2) != 1)
        ranges = np.empty((len(starts), 2), np.uint64)  # iovec: address, length
        ranges[:, 0] = pages_P[starts] * mmap.PAGESIZE
        ranges[:, 1] = np.diff(np.append(starts, len(pages_P))) * mmap.PAGESIZE
        for at in range(0, len(ranges), RANGES_A_CALL):
            part = ranges[at : at + RANGES_A_CALL]
            if self._call is None or self._call(part.ctypes.data, len(part)) < 0:
                self._call = None  # a kernel that refuses once always does
                return


@lru_cache(maxsize=1)
def _process_madvise(pid: int) -> Any:
    """`call(address of iovecs, how many)` for this process, or None; one descriptor for all who ask."""
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
