"""The ops that make a store and change its size."""

# N some slots
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from springtide.kernels.cuda import store as stores
from springtide.kernels.cuda.device import Array
from springtide.kernels.cuda.launchers.launcher import Launcher
from springtide.kernels.cuda.store import (
    WIDTH,
    KeyArrays,
    arrays_of,
    make_array,
    new_keys,
    new_overflow,
    new_rows,
    row_shapes_and_dtypes,
    store_of,
)
from springtide.kernels.ops import OutputBuffers
from springtide.kernels.types import NO_SLOT, TICK_BITS, RowLayout, Store

HALF_WORD = 2  # bytes: rows are moved in these
LANES = 32
NULL = np.uint64(0)  # a pointer to nothing


class StoreOps(Launcher):
    """The part of kernels/ops.py on stores as wholes.

    A store that changes its size exists twice for a moment: CUDA memory does not grow in place. Where there is no
    memory for that the store is as it was.
    """

    def allocate(self, num_slots: int, num_overflow: int, layout: RowLayout) -> Store:
        _check(num_slots)
        layout.check()
        keys = new_keys(self._device, num_slots, new_overflow(self._device, num_overflow))
        return store_of(keys, new_rows(self._device, num_slots + num_overflow, layout), layout)

    def slot_bytes(self, layout: RowLayout) -> int:
        return stores.slot_bytes(layout)

    def grow_overflow(self, store: Store, num_overflow: int) -> Store:
        old, fresh = arrays_of(store).keys, new_overflow(self._device, num_overflow)
        for source, to in zip(old[6:10], fresh[:4], strict=True):
            self._move(source, to, to.dtype.itemsize, 0, NULL, 0, min(store.num_overflow, num_overflow))
        keys = KeyArrays(*old[:6], *fresh)
        self._launch("insert_and_evict", "rebuild", 1, *keys, self._device.filled(1, np.uint32, 1))
        return self._refit(store, keys, NULL)

    def reset_overflow(self, store: Store, num_overflow: int) -> Store:
        num, all_of_them = store.num_overflow, np.int64(1 << TICK_BITS)
        kept, slots_N = (*arrays_of(store).keys, all_of_them), self._device.empty(num, np.int64)
        if self._device.read(self._listed("scan", "overflow", num, kept, (slots_N,)))[0]:
            raise ValueError("the overflow area holds rows: erase or move them first")
        if num_overflow == num:
            return store
        return self._refit(
            store, KeyArrays(*arrays_of(store).keys[:6], *new_overflow(self._device, num_overflow)), NULL
        )

    def rows_without_room(self, store: Store, num_slots: int, start: int = 0, stop: int | None = None) -> Array:
        _check(num_slots)
        stop = num_slots if stop is None else min(stop, num_slots)
        if start % WIDTH or stop % WIDTH:
            raise ValueError(f"slots {start}..{stop} are no whole buckets of {WIDTH}")
        slots_N = self._list_of(store.num_slots, np.int64)
        return self._trim(self._crowded(store, num_slots, start, stop, slots_N), slots_N)[0]

    def resize(self, store: Store, num_slots: int) -> Store:
        """1. See that every key finds room. 2. Fill new buckets. 3. Move the rows after their keys."""
        _check(num_slots)
        device, old = self._device, arrays_of(store).keys
        slots_N = device.empty(store.num_slots, np.int64)
        if num_overflowed := device.read(self._crowded(store, num_slots, 0, num_slots, slots_N))[0]:
            raise ValueError(f"{num_overflowed} rows would find no room in {num_slots} slots: take them out first")
        if num_slots == store.num_slots:
            return store
        keys, from_N = new_keys(device, num_slots, old[6:]), device.empty(num_slots, np.int64)
        arrays = (keys.digests, keys.features, keys.ids, keys.scores)
        self._launch("resize", "refill", num_slots // WIDTH * LANES, *old, keys.num_buckets, *arrays, from_N)
        self._launch("resize", "count_elsewhere", store.num_overflow, *keys)
        return self._refit(store, keys, from_N)

    def _crowded(self, store: Store, num_slots: int, start: int, stop: int, slots_N: Array) -> Array:
        """Lists the crowded slots; how many there are."""
        marks = self._device.filled(store.num_slots, np.uint8, 0)
        buckets = (np.uint64(num_slots // WIDTH), np.int64(start // WIDTH), np.int64(stop // WIDTH))
        num_threads = (stop - start) // WIDTH * LANES
        self._launch("resize", "mark_crowded", num_threads, *arrays_of(store).keys, *buckets, marks)
        return self._listed("resize", "crowded", store.num_slots, (marks,), (slots_N,))

    def _refit(self, store: Store, keys: KeyArrays, from_N: Any) -> Store:
        """The store with these keys; its rows go from slots from_N to 0, 1, ..., or stay where there is no list."""
        num_slots, num_overflow = int(keys.num_buckets) * WIDTH, int(keys.num_overflow)
        rows = []
        for source, form in zip(
            arrays_of(store)[1:], row_shapes_and_dtypes(num_slots + num_overflow, store.layout), strict=True
        ):
            to = self._device.filled(*form, 0)
            num_kept = min(store.num_overflow, num_overflow)
            num_bytes = to.shape[1] * to.dtype.itemsize
            self._move(source, to, num_bytes, store.num_slots, from_N, num_slots, num_kept)
            rows.append(to)
        make_array(store, keys, (rows[0], rows[1], rows[2]))
        return store

    def _move(
        self, source: Array, to: Array, num_bytes: int, old_slots: int, from_N: Any, num_slots: int, num_overflow: int
    ) -> None:
        width = num_bytes // HALF_WORD
        sizes = (np.int64(width), np.int64(old_slots), from_N, np.int64(num_slots), np.int64(num_overflow))
        self._launch("resize", "move_rows", (num_slots + num_overflow) * width, source, *sizes, to)


def _check(num_slots: int) -> None:
    if num_slots % WIDTH or num_slots < WIDTH or num_slots // WIDTH >= 2**31:
        raise ValueError(f"num_slots must be a multiple of {WIDTH} in {WIDTH}..2**38, not {num_slots}")


class TransferOps(Launcher):
    """The arrays' part of kernels/ops.py."""

    device = "cuda"
    width = WIDTH
    max_threads = 1
    readback_delay = 1

    @property
    def xp(self) -> Any:
        return self._device.xp

    def on_current_stream(self) -> AbstractContextManager[object]:
        return self._device.on_current_stream()

    def put(self, *arrays: Any) -> tuple[Array, ...]:
        return self._device.put_all(arrays)

    def upload_async(self, *arrays: Any) -> Callable[[], tuple[Array, ...]]:
        return self._device.upload_async(arrays)

    def fetch(self, *arrays: Array) -> tuple[Any, ...]:
        return self._device.fetch(arrays)()

    def download_async(self, *arrays: Array) -> Callable[[], tuple[Any, ...]]:
        return self._device.download_async(arrays)

    def array_of(self, tensor: Any) -> Array:
        return self._device.array_of(tensor)

    def tensor_of(self, array: Array) -> Any:
        return self._device.tensor(array)

    def unpadded(self, list_N: Array) -> Array:
        return list_N[list_N != NO_SLOT]

    def num_padding(self, list_N: Array) -> int:
        return len(list_N)

    def num_listed(self, list_N: Array) -> Any:
        return self.xp.count_nonzero(list_N != NO_SLOT).reshape(1)

    def bags_of_keys(self, offsets_B1: Array, num_keys: int) -> Array:
        # xp.repeat would wait for the lengths
        return self.xp.searchsorted(offsets_B1[1:], self.xp.arange(num_keys), side="right")

    def count_values(self, values_K: Array, num: int) -> Array:
        return (values_K[:, None] == self.xp.arange(num)).sum(0)

    def new_output_buffers(self) -> OutputBuffers:
        return FreshBuffers()


class FreshBuffers:
    """Output buffers of a GPU: none, since torch's allocator reuses memory anyway."""

    def take(self, num_keys: int, dim: int) -> Array | None:
        return None

    def num_bytes(self) -> int:
        return 0
