"""Events by the hash of their key, and what they are in an interval of time: how many, their sum, the greatest."""

# N impressions, M stored events, H heads of chains, R impressions of long chains, K keys, E events of theirs
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.join.key_index import KeyIndex, UInt64Array
from springtide_client.array_types import BoolArray, Float32Array, Int64Array

# a chain is walked so far for each impression; of a longer one each key's events are sorted once for all impressions
LONG_CHAIN = 64


class Matches:
    """What was found of each of N impressions in its interval."""

    def __init__(self, num: int) -> None:
        self.count_N = np.zeros(num, np.int64)
        self.first_ms_N = np.zeros(num, np.int64)  # of the earliest event; undefined without one
        self.sum_N = np.zeros(num, np.float64)
        self.max_N = np.zeros(num, np.float32)
        self.last_N = np.zeros(num, np.float32)  # of the latest event; of several at that time the greatest
        self.num_new_N = np.zeros(num, np.int64)  # events that no impression before had found


class EventIndex(KeyIndex):
    """Finds the events of a key in an interval of time; one index for each label."""

    columns: ClassVar[Mapping[str, npt.DTypeLike]] = {**KeyIndex.columns, "value": np.float32, "is_matched": np.bool_}

    def append(self, key_hash_N: UInt64Array, event_ms_N: Int64Array, value_N: Float32Array) -> None:
        """Append events, in any order of time. An equal event that comes twice is there twice."""
        is_matched_N = np.zeros(len(key_hash_N), np.bool_)
        self.add({"key_hash": key_hash_N, "ms": event_ms_N, "value": value_N, "is_matched": is_matched_N})

    def match(
        self, key_hash_N: UInt64Array, from_ms_N: Int64Array, to_ms_N: Int64Array, *, marks: bool = True
    ) -> Matches:
        """The events of each key between two times, bounds included; marked as matched if `marks`."""
        found = Matches(len(key_hash_N))
        columns = (found.count_N, found.first_ms_N, found.sum_N, found.max_N, found.last_N, found.num_new_N)
        is_long_N = np.zeros(len(key_hash_N), np.bool_)
        events = (*self.chains, self.column("value"), self.column("is_matched"))
        match_events(events, key_hash_N, from_ms_N, to_ms_N, columns, is_long_N, LONG_CHAIN, marks)
        if is_long_N.any():
            self._match_sorted(np.flatnonzero(is_long_N), key_hash_N, from_ms_N, to_ms_N, found, marks=marks)
        return found

    def count(self, from_ms: int, before_ms: int) -> tuple[int, int]:
        """How many events of a time were matched, and how many were not."""
        ms_M, is_matched_M = self.column("ms")[: len(self)], self.column("is_matched")[: len(self)]
        is_chosen_M = (ms_M >= from_ms) & (ms_M < before_ms)
        num_matched = int(np.count_nonzero(is_chosen_M & is_matched_M))
        return num_matched, int(np.count_nonzero(is_chosen_M)) - num_matched

    def _match_sorted(
        self,
        rows: Int64Array,
        key_hash_N: UInt64Array,
        from_ms_N: Int64Array,
        to_ms_N: Int64Array,
        found: Matches,
        *,
        marks: bool,
    ) -> None:
        """Find what rows of long chains have: each key's events are taken and sorted once for all its impressions."""
        key_hash_K, key_of_row = np.unique(key_hash_N[rows], return_inverse=True)
        num = collect_events(self.chains, key_hash_K, np.empty(0, np.int64), np.empty(0, np.int64))
        key_E, at_E = np.empty(num, np.int64), np.empty(num, np.int64)
        collect_events(self.chains, key_hash_K, key_E, at_E)
        if num == 0:
            return
        order = np.lexsort((self.column("ms")[at_E], key_E))
        key_E, at_E = key_E[order], at_E[order]
        ms_E, value_E = self.column("ms")[at_E], self.column("value")[at_E]
        # one number for key and time, in their order
        oldest_ms, newest_ms = int(ms_E.min()), int(ms_E.max())
        span = newest_ms - oldest_ms + 3
        place_E = key_E * span + ms_E - oldest_ms + 1
        ends = [np.clip(ms_N[rows], oldest_ms - 1, newest_ms + 1) - oldest_ms + 1 for ms_N in (from_ms_N, to_ms_N)]
        first_R = np.searchsorted(place_E, key_of_row * span + ends[0], side="left")
        stop_R = np.searchsorted(place_E, key_of_row * span + ends[1], side="right")
        has_event = stop_R > first_R
        rows, first_R, stop_R = rows[has_event], first_R[has_event], stop_R[has_event]
        sum_E = np.concatenate([[0.0], np.cumsum(value_E, dtype=np.float64)])
        groups = np.flatnonzero(np.diff(place_E, prepend=-1))  # of events of one key and time
        newest = np.maximum.reduceat(value_E, groups)
        found.count_N[rows], found.first_ms_N[rows] = stop_R - first_R, ms_E[first_R]
        found.sum_N[rows] = sum_E[stop_R] - sum_E[first_R]
        found.last_N[rows] = newest[np.searchsorted(groups, stop_R - 1, side="right") - 1]
        found.max_N[rows] = _greatest(value_E, first_R, stop_R)
        if marks:
            is_matched_E = self.column("is_matched")[at_E]
            found.num_new_N[rows] = _mark_matched(is_matched_E, first_R, stop_R)
            self.column("is_matched")[at_E] = is_matched_E


def _greatest(value_E: Float32Array, first_R: Int64Array, stop_R: Int64Array) -> Float32Array:
    """The greatest value of each interval."""
    greatest_R = np.empty(len(first_R), np.float32)
    level_R, greatest_E, level = np.log2(stop_R - first_R).astype(np.int64), value_E, 0
    while True:  # greatest_E: the greatest of 2 ** level values, from each one on
        at = level_R == level
        greatest_R[at] = np.maximum(greatest_E[first_R[at]], greatest_E[stop_R[at] - (1 << level)])
        if level >= level_R.max(initial=0):
            return greatest_R
        greatest_E, level = np.maximum(greatest_E[: -(1 << level)], greatest_E[1 << level :]), level + 1


def _mark_matched(is_matched_E: BoolArray, first_R: Int64Array, stop_R: Int64Array) -> Int64Array:
    """Mark the events of each interval; return how many of them no interval before had marked."""
    num_new_R, next_E = np.empty(len(first_R), np.int64), np.arange(len(is_matched_E) + 1)
    mark_intervals(is_matched_E, next_E, first_R, stop_R, num_new_R)
    return num_new_R


@njit(nogil=True, cache=True)
def match_events(
    events: Any,
    key_hash_N: Any,
    from_ms_N: Any,
    to_ms_N: Any,
    found: Any,
    is_long_N: Any,
    longest: Any,
    marks: Any,
) -> None:
    """Rows whose chains are longer than `longest` are left alone, and noted."""
    key_hash_M, ms_M, next_M, head_H, value_M, is_matched_M = events
    count_N, first_ms_N, sum_N, max_N, last_N, num_new_N = found
    mask = np.uint64(len(head_H) - 1)
    for n in range(len(key_hash_N)):
        head, length = np.int64(head_H[key_hash_N[n] & mask]), 0
        m = head
        while m >= 0 and length <= longest:
            length, m = length + 1, np.int64(next_M[m])
        if length > longest:
            is_long_N[n] = True
            continue
        m, last_ms = head, np.int64(0)
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
                if marks and not is_matched_M[m]:
                    is_matched_M[m] = True
                    num_new_N[n] += 1
            m = np.int64(next_M[m])


@njit(nogil=True, cache=True)
def collect_events(chains: Any, key_hash_K: Any, key_E: Any, at_E: Any) -> Any:
    """Write where the events of each key are, as far as there is room; return how many there are."""
    key_hash_M, _, next_M, head_H = chains
    mask, num = np.uint64(len(head_H) - 1), 0
    for k in range(len(key_hash_K)):
        m = head_H[key_hash_K[k] & mask]
        while m >= 0:
            if key_hash_M[m] == key_hash_K[k]:
                if num < len(at_E):
                    key_E[num], at_E[num] = k, m
                num += 1
            m = next_M[m]
    return num


@njit(nogil=True, cache=True)
def mark_intervals(is_matched_E: Any, next_E: Any, first_R: Any, stop_R: Any, num_new_R: Any) -> None:
    """`next_E`: from each event on, one that may not be marked; shortened on the way, so all take about E + R steps."""
    for r in range(len(first_R)):
        num_new_R[r] = 0
        e = first_R[r]
        while True:
            end = e
            while next_E[end] != end:
                end = next_E[end]
            while next_E[e] != end and e != end:
                after = next_E[e]
                next_E[e] = end
                e = after
            if end >= stop_R[r]:
                break
            if not is_matched_E[end]:
                is_matched_E[end] = True
                num_new_R[r] += 1
            next_E[end] = end + 1
            e = end + 1
