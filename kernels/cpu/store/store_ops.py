"""The ops that make a store and change its size."""

# N some slots
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.index import resize as resizing
from springtide.kernels.cpu.index.buckets import WIDTH, empty_overflow, grown_overflow
from springtide.kernels.cpu.store import store as stores
from springtide.kernels.cpu.store.store import arrays_of, new_store, refit
from springtide.kernels.types import RowLayout, Store

Array = npt.NDArray[Any]


class StoreOps:
    """The part of kernels/ops.py on stores as wholes."""

    def allocate(self, num_slots: int, num_overflow: int, layout: RowLayout) -> Store:
        _check(num_slots)
        layout.check()
        return new_store(num_slots, layout, empty_overflow(num_overflow))

    def slot_bytes(self, layout: RowLayout) -> int:
        return stores.slot_bytes(layout)

    def grow_overflow(self, store: Store, num_overflow: int) -> Store:
        refit(store, store.num_slots, grown_overflow(arrays_of(store).overflow, num_overflow))
        return store

    def reset_overflow(self, store: Store, num_overflow: int) -> Store:
        overflow = arrays_of(store).overflow
        if overflow.num_free_1[0] != len(overflow.ids_O):
            raise ValueError("the overflow area holds rows: erase or move them first")
        if num_overflow != store.num_overflow:
            refit(store, store.num_slots, empty_overflow(num_overflow))
        return store

    def rows_without_room(self, store: Store, num_slots: int, start: int = 0, stop: int | None = None) -> Array:
        _check(num_slots)
        stop = num_slots if stop is None else min(stop, num_slots)
        if start % WIDTH or stop % WIDTH:
            raise ValueError(f"slots {start}..{stop} are no whole buckets of {WIDTH}")
        sizes = (np.uint64(store.num_slots // WIDTH), np.uint64(num_slots // WIDTH), start // WIDTH, stop // WIDTH)
        buckets = arrays_of(store).buckets
        slots_N = np.empty(resizing.crowded(buckets, *sizes, np.empty(0, np.int64)), np.int64)
        resizing.crowded(buckets, *sizes, slots_N)
        slots_N.sort()
        return slots_N

    def resize(self, store: Store, num_slots: int) -> Store:
        if num_overflowed := len(self.rows_without_room(store, num_slots)):
            raise ValueError(f"{num_overflowed} rows would find no room in {num_slots} slots: take them out first")
        if num_slots != store.num_slots:
            resizing.resize(store, num_slots)
        return store


def _check(num_slots: int) -> None:
    if num_slots % WIDTH or num_slots < WIDTH or num_slots // WIDTH >= 2**32:
        raise ValueError(f"num_slots must be a multiple of {WIDTH} in {WIDTH}..2**36, not {num_slots}")
