"""The arrays behind a store, and how they are allocated.

A row's values are contiguous. What else is known of it is one record of four words, two records a cache line: count,
last-seen, flags, and one float32 of optimizer state; a state that is wider has an array of its own for the rest.
"""

# C slots and overflow rows, D dimension, S what of the optimizer state is not in the record
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from kernels.cpu.index import WORDS, Buckets
from kernels.cpu.overflow import Overflow
from kernels.spec import WIDTH, Layout, Store

Array = npt.NDArray[Any]
LINE = 64
RECORD_BYTES = 32
DTYPES = {"float32": np.float32, "bfloat16": np.uint16}  # numpy has no bfloat16: the upper halves of float32


class Parts(NamedTuple):
    """The arrays of a store; scalars is meta as float32."""

    buckets: Buckets
    overflow: Overflow
    values_CD: Array
    meta: Array
    scalars: Array
    states_CS: Array


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


def num_own_states(layout: Layout) -> int:
    """How many numbers of a row's state have an array of their own: what is one more than whole rows is not there."""
    odd = layout.state_width % 2 if layout.dim == 1 else int(layout.state_width % layout.dim == 1)
    return layout.state_width - odd


def slot_bytes(layout: Layout) -> int:
    """Everything counted."""
    value_bytes = np.dtype(DTYPES[layout.dtype]).itemsize * layout.dim
    return WORDS * 8 // WIDTH + value_bytes + RECORD_BYTES + 4 * num_own_states(layout)


def new_store(num_slots: int, layout: Layout, buckets: Buckets, overflow: Overflow, old: Parts | None = None) -> Store:
    """A store of these keys; its rows are those of the old one as far as they go, else zeros."""
    num_rows, num_states = num_slots + len(overflow.ids_O), num_own_states(layout)
    values_CD = aligned_zeros(num_rows * layout.dim, DTYPES[layout.dtype]).reshape(num_rows, layout.dim)
    meta = aligned_zeros(num_rows * 4, np.int64).reshape(num_rows, 4)
    states_CS = aligned_zeros(num_rows * num_states, np.float32).reshape(num_rows, num_states)
    if old is not None:
        values_CD[: len(old.values_CD)] = old.values_CD
        meta[: len(old.meta)] = old.meta
        states_CS[: len(old.states_CS)] = old.states_CS
    parts = Parts(buckets, overflow, values_CD, meta, meta.view(np.float32), states_CS)
    num_bytes = sum(array.nbytes for array in (buckets.words, *overflow, values_CD, meta, states_CS))
    return Store(num_slots, len(overflow.ids_O), layout, parts, num_bytes)
