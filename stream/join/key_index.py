"""Records by the hash of their key: a hash table of chains, compiled. One thread."""

# N records that are added, M stored ones, H heads of chains
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.join.held_bytes import Block, HeldBytes, Shapes, num_bytes_of

UInt64Array = npt.NDArray[np.uint64]
MIN_CAPACITY = 1 << 8
GROWTHS = (2.0, 1.25, 1.0)  # of the capacity, the first one for which there is room
FORGET_ROWS = 1 << 16  # that are looked at together


class KeyIndex:
    """Appends records, each with its time and more columns of a subclass, and forgets old ones."""

    columns: ClassVar[Mapping[str, npt.DTypeLike]] = {"key_hash": np.uint64, "ms": np.int64}

    def __init__(self, held: HeldBytes | None = None) -> None:
        """`held`: where the arrays are kept, and counted."""
        self._held = held or HeldBytes()
        self._num, self._num_to_forget_at = 0, MIN_CAPACITY
        self._block = self._held.allocate(self._shapes(MIN_CAPACITY))
        self._link_all()

    def __len__(self) -> int:
        return self._num

    @property
    def chains(self) -> tuple[npt.NDArray[Any], ...]:
        """What kernels walk through: hashes and times (M), the next record in the chain (M), the first ones (H)."""
        return self.column("key_hash"), self.column("ms"), self._block.arrays["next"], self._block.arrays["head"]

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of all records, and of room for more."""
        return self._block.arrays[name]

    def has_room(self, num: int) -> bool:
        """True if so many records more can be added without exceeding the caps."""
        needed = self._num + num
        return needed <= self._capacity or self._held.fits(num_bytes_of(self._shapes(needed)))

    def add(self, records: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append records by column, in any order of time. An equal one that comes twice is there twice."""
        stop = self._num + len(records["key_hash"])
        if stop > self._capacity:
            self._resize(stop)
        for name, column_N in records.items():
            self.column(name)[self._num : stop] = column_N
        link_records(*self.chains, self._num, stop)
        self._num = stop

    def forget(self, before_ms: int) -> None:
        """Drop records older than this, now or when there are twice as many: nothing to come reaches them."""
        if self._num < self._num_to_forget_at:
            return
        kept = 0
        for start in range(0, self._num, FORGET_ROWS):
            ms = self.column("ms")[start : min(start + FORGET_ROWS, self._num)]
            rows = start + np.flatnonzero(ms >= before_ms)
            for name in self.columns:
                self.column(name)[kept : kept + len(rows)] = self.column(name)[rows]
            kept += len(rows)
        if kept < self._num:
            self._num = kept
            if self._capacity > max(MIN_CAPACITY, 4 * kept):
                self._resize(kept)
            else:
                self._link_all()
        self._num_to_forget_at = max(MIN_CAPACITY, 2 * kept)

    def close(self) -> None:
        """Give back everything."""
        self._held.free(self._block)

    @property
    def _capacity(self) -> int:
        return len(self.column("key_hash"))

    def _link_all(self) -> None:
        self._block.arrays["head"][:] = -1
        link_records(*self.chains, 0, self._num)

    def _resize(self, needed: int) -> None:
        """Have room for so many, and for more where that fits."""
        sizes = [max(MIN_CAPACITY, int(growth * needed)) for growth in GROWTHS]
        capacity = next((size for size in sizes if self._held.fits(num_bytes_of(self._shapes(size)))), sizes[-1])
        block: Block = self._held.allocate(self._shapes(capacity))
        for name in self.columns:
            block.arrays[name][: self._num] = self.column(name)[: self._num]
        self._held.free(self._block)
        self._block = block
        self._link_all()

    def _shapes(self, capacity: int) -> Shapes:
        """The arrays of so many records: their columns, four bytes, and two to four heads of four bytes."""
        num_heads = 1 << (2 * capacity - 1).bit_length()
        columns: dict[str, npt.DTypeLike] = {**self.columns, "next": np.int32}
        return {**{name: ((capacity,), dtype) for name, dtype in columns.items()}, "head": ((num_heads,), np.int32)}


@njit(nogil=True, cache=True)
def link_records(key_hash_M: Any, ms_M: Any, next_M: Any, head_H: Any, start: Any, stop: Any) -> None:
    mask = np.uint64(len(head_H) - 1)
    for m in range(start, stop):
        head = key_hash_M[m] & mask
        next_M[m] = head_H[head]
        head_H[head] = m
