"""What samples read of the rows that remember ids, and what they add to them: springtide_client.memory, compiled.

Elements that no sample can read any more leave a row. Which ones follows from the row alone, so the same samples in
another order, or in other batches, leave the same row.
"""

# N samples, U rows, K values of an element, D numbers of a row, L elements that a sample reads at most
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit

NONE = -1
LOW_24, LOW_16 = 0xFFFFFF, 0xFFFF
MAX_AFTER = LOW_24  # ticks from an element's own to the first in which it is read
VISIBLE_AFTER = 2  # ticks
NUM_TIMES, NUM_VALUE = 3, 3
Array = npt.NDArray[Any]


class MemoryRules(NamedTuple):
    """The settings of one memory; times in ms."""

    tick_ms: int
    last: int
    capacity: int
    pending_ticks: int
    ttl_ms: int  # 0: without
    distinct: int  # the place of the value that counts once, NONE: without


class MemoryBatch(NamedTuple):
    """What samples bring, in order."""

    rows_N: Array  # int64: the row of each, NONE: it has none
    event_ms_N: Array  # int64
    known_ms_N: Array  # int64: when it became known, NONE: it is not remembered
    values_NK: Array  # int64


@njit(nogil=True, cache=True)
def walk(rules: Any, rows_UD: Array, batch: Any, values_NLK: Array, event_ms_NL: Array, counts_2: Array) -> Any:
    """Let each sample read its row, then remember it. Returns how many elements each has read, int64 (N).

    They are in `values_NLK` and `event_ms_NL`, the oldest first. To `counts_2`, int64, are added: the elements that are
    dropped for lack of room, and the samples that come too late to read a row as it was.
    """
    num_samples, num_values = batch.values_NK.shape
    lengths_N = np.zeros(num_samples, np.int64)
    num = rules.capacity + 1
    from_tick_M, event_ms_M = np.empty(num, np.int64), np.empty(num, np.int64)
    values_MK, places_L = np.empty((num, num_values), np.int64), np.empty(rules.last, np.int64)
    for n in range(num_samples):
        row = batch.rows_N[n]
        if row < 0:
            continue
        row_D = rows_UD[row]
        num_elements = decode_row(row_D, rules.tick_ms, from_tick_M, event_ms_M, values_MK)
        event_ms = batch.event_ms_N[n]
        length = select(rules, event_ms, num_elements, from_tick_M, event_ms_M, values_MK, places_L)
        for place in range(length):
            element = places_L[length - 1 - place]
            event_ms_NL[n, place] = event_ms_M[element]
            for k in range(num_values):
                values_NLK[n, place, k] = values_MK[element, k]
        lengths_N[n] = length
        if num_elements > 0 and event_ms // rules.tick_ms <= newest_tick(rules, num_elements, event_ms_M):
            counts_2[1] += 1
        known_ms = batch.known_ms_N[n]
        if known_ms < 0:
            continue
        tick = event_ms // rules.tick_ms
        after = min(known_ms // rules.tick_ms + VISIBLE_AFTER - tick, MAX_AFTER)
        at = num_elements
        while at > 0 and is_before(event_ms, batch.values_NK[n], event_ms_M[at - 1], values_MK[at - 1]):
            from_tick_M[at], event_ms_M[at] = from_tick_M[at - 1], event_ms_M[at - 1]
            values_MK[at] = values_MK[at - 1]
            at -= 1
        from_tick_M[at], event_ms_M[at] = tick + after, event_ms
        values_MK[at] = batch.values_NK[n]
        num_elements = prune(rules, num_elements + 1, from_tick_M, event_ms_M, values_MK)
        if num_elements > rules.capacity:
            counts_2[0] += 1
        encode_row(row_D, rules, num_elements, from_tick_M, event_ms_M, values_MK)
    return lengths_N


@njit(nogil=True, cache=True)
def newest_tick(rules: Any, num_elements: int, event_ms_M: Array) -> Any:
    """Return the newest tick of which no sample comes any more, if disorder is as the settings say."""
    return event_ms_M[num_elements - 1] // rules.tick_ms - rules.pending_ticks


@njit(nogil=True, cache=True)
def is_before(event_ms: int, values_K: Array, other_ms: int, other_K: Array) -> bool:
    """Return True if an element is older than another one; of the same time, if its values are lower."""
    if event_ms != other_ms:
        return event_ms < other_ms
    for k in range(len(values_K)):
        if values_K[k] != other_K[k]:
            return bool(values_K[k] < other_K[k])
    return False


@njit(nogil=True, cache=True)
def select(
    rules: Any,
    event_ms: int,
    num_elements: int,
    from_tick_M: Array,
    event_ms_M: Array,
    values_MK: Array,
    places_L: Array,
) -> int:
    """Write the places of the elements that a sample reads, the newest first; returns how many they are."""
    tick, length = event_ms // rules.tick_ms, 0
    for element in range(num_elements - 1, -1, -1):
        if length == rules.last:
            break
        if from_tick_M[element] > tick or (rules.ttl_ms > 0 and event_ms_M[element] <= event_ms - rules.ttl_ms):
            continue
        if rules.distinct >= 0 and has_value(rules, values_MK, places_L, length, values_MK[element, rules.distinct]):
            continue
        places_L[length] = element
        length += 1
    return length


@njit(nogil=True, cache=True)
def has_value(rules: Any, values_MK: Array, places_L: Array, length: int, value: int) -> bool:
    """Return True if one of these elements has the value that counts once."""
    found = False
    for place in range(length):
        found |= values_MK[places_L[place], rules.distinct] == value
    return found


@njit(nogil=True, cache=True)
def prune(rules: Any, num_elements: int, from_tick_M: Array, event_ms_M: Array, values_MK: Array) -> int:
    """Drop the elements that no sample can read any more; returns how many are left.

    No sample reads an element if each that could also sees `last` newer ones, or a newer one with the same value.
    """
    if num_elements <= rules.last and rules.distinct < 0 and rules.ttl_ms == 0:
        return num_elements
    settled = newest_tick(rules, num_elements, event_ms_M) + 1  # every sample that may still come reads up to here
    is_kept_M = np.ones(num_elements, np.bool_)
    oldest_ms = settled * rules.tick_ms - rules.ttl_ms
    for element in range(num_elements - 1, -1, -1):
        if rules.ttl_ms > 0 and event_ms_M[element] <= oldest_ms:
            is_kept_M[element] = False
            continue
        tick, num_newer = max(from_tick_M[element], settled), 0
        for newer in range(element + 1, num_elements):
            if num_newer >= rules.last:
                break
            if not is_kept_M[newer] or from_tick_M[newer] > tick:
                continue
            if rules.distinct < 0:
                num_newer += 1
            elif values_MK[newer, rules.distinct] == values_MK[element, rules.distinct]:
                num_newer = rules.last
                break
            elif is_first(rules, newer, element, tick, is_kept_M, from_tick_M, values_MK):
                num_newer += 1
        is_kept_M[element] = num_newer < rules.last
    kept = 0
    for element in range(num_elements):
        if is_kept_M[element]:
            from_tick_M[kept], event_ms_M[kept] = from_tick_M[element], event_ms_M[element]
            values_MK[kept] = values_MK[element]
            kept += 1
    return kept


@njit(nogil=True, cache=True)
def is_first(
    rules: Any, newer: int, element: int, tick: int, is_kept_M: Array, from_tick_M: Array, values_MK: Array
) -> bool:
    """Return True if no element between two, readable at a tick, has the value of the newer one."""
    for between in range(element + 1, newer):
        if not is_kept_M[between] or from_tick_M[between] > tick:
            continue
        if values_MK[between, rules.distinct] == values_MK[newer, rules.distinct]:
            return False
    return True


@njit(nogil=True, cache=True)
def decode_row(row_D: Array, tick_ms: int, from_tick_M: Array, event_ms_M: Array, values_MK: Array) -> int:
    """Write the elements of a row, the oldest first; returns how many it has."""
    num_elements, at = int(row_D[0]), 1
    for element in range(num_elements):
        event_ms = np.int64(row_D[at + 1]) << 24 | np.int64(row_D[at + 2])
        event_ms_M[element] = event_ms
        from_tick_M[element] = event_ms // tick_ms + np.int64(row_D[at])
        at += NUM_TIMES
        for k in range(values_MK.shape[1]):
            high, middle, low = np.int64(row_D[at]), np.int64(row_D[at + 1]), np.int64(row_D[at + 2])
            values_MK[element, k] = high << 48 | middle << 24 | low
            at += NUM_VALUE
    return num_elements


@njit(nogil=True, cache=True)
def encode_row(
    row_D: Array, rules: Any, num_elements: int, from_tick_M: Array, event_ms_M: Array, values_MK: Array
) -> None:
    """Write elements to a row; of too many the newest."""
    first = max(0, num_elements - rules.capacity)
    row_D[:] = 0
    row_D[0] = num_elements - first
    at = 1
    for element in range(first, num_elements):
        event_ms = event_ms_M[element]
        row_D[at] = from_tick_M[element] - event_ms // rules.tick_ms
        row_D[at + 1], row_D[at + 2] = event_ms >> 24, event_ms & LOW_24
        at += NUM_TIMES
        for k in range(values_MK.shape[1]):
            value = values_MK[element, k]
            row_D[at] = (value >> 48) & LOW_16
            row_D[at + 1], row_D[at + 2] = (value >> 24) & LOW_24, value & LOW_24
            at += NUM_VALUE
