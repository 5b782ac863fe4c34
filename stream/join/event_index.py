"""Events by the hash of their key: a hash table of chains, compiled. One label, one thread."""

# N events or impressions, M stored events, H heads of chains
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide_client.array_types import Float32Array, Int64Array

UInt64Array = npt.NDArray[np.uint64]
MIN_CAPACITY = 1 << 10
EVENT_BYTES = 8 + 8 + 4 + 1 + 4 + 8  # key hash, time, value, mark, next in the chain; two heads of four bytes


class Matches:
    """What was found of each of N impressions in its interval."""

    def __init__(self, num: int) -> None:
        self.count_N = np.zeros(num, np.int64)
        self.first_ms_N = np.zeros(num, np.int64)  # of the earliest event; undefined without one
        self.sum_N = np.zeros(num, np.float64)
        self.max_N = np.zeros(num, np.float32)
        self.last_N = np.zeros(num, np.float32)  # of the latest event; of several at that time the greatest
        self.num_new_N = np.zeros(num, np.int64)  # events that no impression before had found


class EventIndex:
    """Appends events, finds those of a key in an interval of time, forgets old ones."""

    def __init__(self) -> None:
        self._num, self._num_to_forget_at = 0, MIN_CAPACITY
        self._allocate(MIN_CAPACITY)

    def __len__(self) -> int:
        return self._num

    @property
    def num_bytes(self) -> int:
        """Bytes of the events and of the table over them."""
        return (
            self._key_hash_M.nbytes
            + self._ms_M.nbytes
            + self._value_M.nbytes
            + self._is_matched_M.nbytes
            + self._next_M.nbytes
            + self._head_H.nbytes
        )

    def add(self, key_hash_N: UInt64Array, event_ms_N: Int64Array, value_N: Float32Array) -> None:
        """Append events, in any order of time. An equal event that comes twice is there twice."""
        if self._num + len(key_hash_N) > len(self._key_hash_M):
            self._rebuild(np.arange(self._num), 2 * (self._num + len(key_hash_N)))
        stop = self._num + len(key_hash_N)
        self._key_hash_M[self._num : stop] = key_hash_N
        self._ms_M[self._num : stop] = event_ms_N
        self._value_M[self._num : stop] = value_N
        self._is_matched_M[self._num : stop] = False
        link_events(self._key_hash_M, self._next_M, self._head_H, self._num, stop)
        self._num = stop

    def match(self, key_hash_N: UInt64Array, from_ms_N: Int64Array, to_ms_N: Int64Array) -> Matches:
        """The events of each key between two times, bounds included. They are marked as matched."""
        found = Matches(len(key_hash_N))
        match_events(
            (self._key_hash_M, self._ms_M, self._value_M, self._is_matched_M, self._next_M, self._head_H),
            key_hash_N,
            from_ms_N,
            to_ms_N,
            (found.count_N, found.first_ms_N, found.sum_N, found.max_N, found.last_N, found.num_new_N),
        )
        return found

    def count(self, from_ms: int, before_ms: int) -> tuple[int, int]:
        """How many events of a time were matched, and how many were not."""
        is_chosen_M = (self._ms_M[: self._num] >= from_ms) & (self._ms_M[: self._num] < before_ms)
        num_matched = int(np.count_nonzero(is_chosen_M & self._is_matched_M[: self._num]))
        return num_matched, int(np.count_nonzero(is_chosen_M)) - num_matched

    def forget(self, before_ms: int) -> None:
        """Drop events older than this, now or when there are twice as many: no impression to come reaches them."""
        if self._num < self._num_to_forget_at:
            return
        kept = np.flatnonzero(self._ms_M[: self._num] >= before_ms)
        if len(kept) < self._num:
            self._rebuild(kept, 2 * len(kept))
        self._num_to_forget_at = max(MIN_CAPACITY, 2 * len(kept))

    def _allocate(self, capacity: int) -> None:
        capacity = max(MIN_CAPACITY, capacity)
        self._key_hash_M = np.empty(capacity, np.uint64)
        self._ms_M = np.empty(capacity, np.int64)
        self._value_M = np.empty(capacity, np.float32)
        self._is_matched_M = np.empty(capacity, np.bool_)
        self._next_M = np.empty(capacity, np.int32)
        self._head_H = np.full(1 << (2 * capacity - 1).bit_length(), -1, np.int32)

    def _rebuild(self, kept: Int64Array, capacity: int) -> None:
        columns = self._key_hash_M[kept], self._ms_M[kept], self._value_M[kept]
        is_matched_M = self._is_matched_M[kept]
        self._allocate(capacity)
        self._num = 0
        self.add(*columns)
        self._is_matched_M[: self._num] = is_matched_M


@njit(nogil=True, cache=True)
def link_events(key_hash_M: Any, next_M: Any, head_H: Any, start: Any, stop: Any) -> None:
    mask = np.uint64(len(head_H) - 1)
    for m in range(start, stop):
        head = key_hash_M[m] & mask
        next_M[m] = head_H[head]
        head_H[head] = m


@njit(nogil=True, cache=True)
def match_events(events: Any, key_hash_N: Any, from_ms_N: Any, to_ms_N: Any, found: Any) -> None:
    key_hash_M, ms_M, value_M, is_matched_M, next_M, head_H = events
    count_N, first_ms_N, sum_N, max_N, last_N, num_new_N = found
    mask = np.uint64(len(head_H) - 1)
    for n in range(len(key_hash_N)):
        m = head_H[key_hash_N[n] & mask]
        last_ms = np.int64(0)
        while m >= 0:
            ms, value = ms_M[m], value_M[m]
            if key_hash_M[m] == key_hash_N[n] and from_ms_N[n] <= ms <= to_ms_N[n]:
                if count_N[n] == 0:
                    first_ms_N[n], max_N[n], last_N[n], last_ms = ms, value, value, ms
                else:
                    first_ms_N[n] = min(first_ms_N[n], ms)
                    max_N[n] = max(max_N[n], value)
                    if ms > last_ms:
                        last_N[n], last_ms = value, ms
                    elif ms == last_ms:
                        last_N[n] = max(last_N[n], value)
                count_N[n] += 1
                sum_N[n] += value
                if not is_matched_M[m]:
                    is_matched_M[m] = True
                    num_new_N[n] += 1
            m = next_M[m]
