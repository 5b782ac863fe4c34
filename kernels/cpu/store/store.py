"""The arrays behind a store, and how they are allocated.

A row's values are contiguous. What else is known of it is one record of four words, two records a cache line: count,
last-seen, flags, and one float32 of optimizer state; a state that is wider has an array of its own for the rest, in
which the row's wide columns follow.
"""

# C slots and overflow rows, D dimension, S what of the optimizer state is not in the record
import contextlib
import math
import mmap
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.index.buckets import WIDTH, WORDS, Buckets, Overflow
from springtide.kernels.types import DTYPES, RowLayout, Store

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


RECORD_BYTES = 32


class PageMaps(NamedTuple):
    """The maps under a store's arrays."""

    words: mmap.mmap
    values: mmap.mmap
    meta: mmap.mmap
    states: mmap.mmap


class StoreArrays(NamedTuple):
    """The arrays of a store; scalars is meta as float32."""

    buckets: Buckets
    overflow: Overflow
    values_CD: Array
    meta: Array
    scalars: Array
    states_CS: Array
    pages: PageMaps


def arrays_of(store: Store) -> StoreArrays:
    """The arrays of a store that `CpuOps` allocated."""
    return cast(StoreArrays, store.arrays)


def num_own_states(layout: RowLayout) -> int:
    """How many numbers of a row's state have an array of their own: what is one more than whole rows is not there.

    That one is the optimizer's last; in a state the wide columns follow it.
    """
    width = layout.state_width - layout.wide_width
    odd = width % 2 if layout.dim == 1 else int(width % layout.dim == 1)
    return layout.state_width - odd


def slot_bytes(layout: RowLayout) -> int:
    """Everything counted."""
    value_bytes = np.dtype(DTYPES[layout.dtype]).itemsize * layout.dim
    return WORDS * 8 // WIDTH + value_bytes + RECORD_BYTES + 4 * num_own_states(layout)


def new_store(num_slots: int, layout: RowLayout, overflow: Overflow) -> Store:
    """A store of zeros with this overflow area."""
    pages = PageMaps(*map(new_pages, _sizes(num_slots, len(overflow.ids_O), layout)))
    store = Store(num_slots, 0, layout, (), 0)
    _make_arrays(store, num_slots, overflow, pages)
    return store


def refit(store: Store, num_slots: int, overflow: Overflow) -> None:
    """Arrays of so many slots and this overflow area: the bytes as they are, zeros where longer; moves no row.

    Where there is no memory the store stays as it was and the error is raised.
    """
    old_num_slots, old_overflow, pages = store.num_slots, arrays_of(store).overflow, list(arrays_of(store).pages)
    sizes = _sizes(num_slots, len(overflow.ids_O), store.layout)
    store.arrays = ()  # a map cannot move while arrays refer to it
    try:
        for i, num_bytes in enumerate(sizes):
            pages[i] = resized(pages[i], num_bytes)
    finally:
        if any(len(page) < num_bytes for page, num_bytes in zip(pages, sizes, strict=True)):
            num_slots, overflow = old_num_slots, old_overflow
        _make_arrays(store, num_slots, overflow, PageMaps(*pages))


def _make_arrays(store: Store, num_slots: int, overflow: Overflow, pages: PageMaps) -> None:
    """Gives a store its arrays over these maps."""
    forms = _shapes_and_dtypes(num_slots, len(overflow.ids_O), store.layout)
    arrays = (array_over(page, shape, dtype) for page, (shape, dtype) in zip(pages, forms, strict=True))
    words, values_CD, meta, states_CS = arrays
    buckets = Buckets(words, words.view(np.uint16), words.view(np.uint8))
    store.num_slots, store.num_overflow = num_slots, len(overflow.ids_O)
    store.arrays = StoreArrays(buckets, overflow, values_CD, meta, meta.view(np.float32), states_CS, pages)
    store.num_bytes = sum(array.nbytes for array in (words, *overflow, values_CD, meta, states_CS))


def _shapes_and_dtypes(num_slots: int, num_overflow: int, layout: RowLayout) -> list[tuple[tuple[int, ...], Any]]:
    """Shapes and dtypes of the arrays, in the order of Pages."""
    num_rows = num_slots + num_overflow
    return [
        ((num_slots // WIDTH * WORDS,), np.uint64),
        ((num_rows, layout.dim), DTYPES[layout.dtype]),
        ((num_rows, RECORD_BYTES // 8), np.int64),
        ((num_rows, num_own_states(layout)), np.float32),
    ]


def _sizes(num_slots: int, num_overflow: int, layout: RowLayout) -> list[int]:
    forms = _shapes_and_dtypes(num_slots, num_overflow, layout)
    return [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in forms]
