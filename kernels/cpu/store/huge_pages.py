"""Zeroed memory that grows and shrinks in place: private anonymous maps, in huge pages if available.

A map is moved by its page table, not by copying, so that a table changes its size without a second one beside it.
"""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HUGE_PAGE_BYTES = 1 << 21


def new_pages(num_bytes: int) -> mmap.mmap:
    """Zeros; a map of nothing has one page."""
    pages = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _ask_for_huge_pages(pages)
    return pages


def resized(pages: mmap.mmap, num_bytes: int) -> mmap.mmap:
    """A map of another size: the bytes as far as they go, zeros beyond; the map given is spent.

    Copies if the system cannot move maps, or if an array over this map is still in use.
    """
    num_bytes = max(num_bytes, mmap.PAGESIZE)
    try:
        pages.resize(num_bytes)
    except (BufferError, SystemError):
        copy = new_pages(num_bytes)
        num_kept = min(num_bytes, len(pages))
        with memoryview(pages) as source:
            copy[:num_kept] = source[:num_kept]
        return copy
    _ask_for_huge_pages(pages)
    return pages


def array_over(pages: mmap.mmap, shape: tuple[int, ...], dtype: Any) -> Array:
    """An array over the first bytes of a map."""
    return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


def zeros(num: int, dtype: Any) -> Array:
    """An array on a map of its own."""
    return array_over(new_pages(num * np.dtype(dtype).itemsize), (num,), dtype)


def _ask_for_huge_pages(pages: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE") and len(pages) >= HUGE_PAGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without them has small pages, and all of it works
            pages.madvise(mmap.MADV_HUGEPAGE)
