"""The arrays behind a store, and how they are allocated."""

# C slots and overflow rows, D dimension
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from kernels.cpu.index import WORDS, Buckets
from kernels.cpu.overflow import Overflow
from kernels.spec import WIDTH, Store

Array = npt.NDArray[Any]
LINE = 64


class Parts(NamedTuple):
    """The arrays of a store; states is a view of meta's bytes."""

    buckets: Buckets
    overflow: Overflow
    values_CD: Array
    meta: Array
    states: Array


def parts_of(store: Store) -> Parts:
    """The arrays of a store that `CpuVerbs` allocated."""
    return cast(Parts, store.arrays)


def aligned_zeros(num: int, dtype: Any) -> Array:
    """Zeros that begin at a cache line."""
    size = np.dtype(dtype).itemsize * num
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype)


def empty_buckets(num_slots: int) -> Buckets:
    """Buckets without a key."""
    words = aligned_zeros(num_slots // WIDTH * WORDS, np.uint64)
    return Buckets(words, words.view(np.uint16), words.view(np.uint8))


def new_store(
    num_slots: int, dim: int, state_width: int, buckets: Buckets, overflow: Overflow, old: Parts | None = None
) -> Store:
    """A store of these keys; its rows are those of the old one as far as they go, else zeros."""
    num_rows = num_slots + len(overflow.ids_O)
    values_CD = aligned_zeros(num_rows * dim, np.float32).reshape(num_rows, dim)
    meta = aligned_zeros(num_rows * 4, np.int64).reshape(num_rows, 4)
    if old is not None:
        values_CD[: len(old.values_CD)] = old.values_CD
        meta[: len(old.meta)] = old.meta
    parts = Parts(buckets, overflow, values_CD, meta, meta.view(np.float32))
    num_bytes = sum(array.nbytes for array in (buckets.words, *overflow, values_CD, meta))
    return Store(num_slots, len(overflow.ids_O), dim, state_width, parts, num_bytes)
