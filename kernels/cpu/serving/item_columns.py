"""Items as sorted ids and words of 8 bytes: merged, taken, compared, and unpacked as keys, while other threads go on.

The words of item i lie from `offsets_I1[i]` to `offsets_I1[i + 1]`: ids of its other categorical features, lengths of
its lists, its numbers as float64, ids of its lists.
"""

# I items, J newer ones, M some, W words, K keys, C categorical features, L lists, F dense features
from typing import Any

import numpy as np

from springtide.kernels.cpu.intrinsics.specialize import holding_gil
from springtide.kernels.njit import njit

OWN_ID, OTHER_ID, LISTED_ID, NUMBER = 0, 1, 2, 3  # what a condition is about


@njit(nogil=True, cache=True)
def merge_ids(older_I: Any, newer_J: Any, from_M: Any) -> Any:
    """Write where each id of two ascending columns is in them laid end to end, the newer one's; returns how many."""
    i, j, length = 0, 0, 0
    while i < len(older_I) or j < len(newer_J):
        if j == len(newer_J) or (i < len(older_I) and older_I[i] < newer_J[j]):
            from_M[length] = i
            i += 1
        else:
            if i < len(older_I) and older_I[i] == newer_J[j]:
                i += 1
            from_M[length] = len(older_I) + j
            j += 1
        length += 1
    return length


@njit(nogil=True, cache=True)
def take_offsets(from_M: Any, offsets_I1: Any, offsets_J1: Any, offsets_M1: Any) -> None:
    """Write the offsets of the words of items that come from two columns laid end to end."""
    num_older = len(offsets_I1) - 1
    offsets_M1[0] = 0
    for m in range(len(from_M)):
        i = from_M[m]
        if i < num_older:
            length = offsets_I1[i + 1] - offsets_I1[i]
        else:
            length = offsets_J1[i - num_older + 1] - offsets_J1[i - num_older]
        offsets_M1[m + 1] = offsets_M1[m] + length


@njit(nogil=True, cache=True)
def take_words(
    from_M: Any, offsets_I1: Any, words_W: Any, offsets_J1: Any, newer_W: Any, offsets_M1: Any, taken_W: Any
) -> None:
    """Write the words of items that come from two columns laid end to end."""
    num_older = len(offsets_I1) - 1
    for m in range(len(from_M)):
        i, at = from_M[m], offsets_M1[m]
        if i < num_older:
            for w in range(offsets_I1[i], offsets_I1[i + 1]):
                taken_W[at] = words_W[w]
                at += 1
        else:
            for w in range(offsets_J1[i - num_older], offsets_J1[i - num_older + 1]):
                taken_W[at] = newer_W[w]
                at += 1


@njit(nogil=True, cache=True)
def take_rows(from_M: Any, older_IO: Any, newer_JO: Any, taken_MO: Any) -> None:
    """Write rows that come from two arrays laid end to end."""
    for m in range(len(from_M)):
        i = from_M[m]
        for o in range(older_IO.shape[1]):
            taken_MO[m, o] = older_IO[i, o] if i < len(older_IO) else newer_JO[i - len(older_IO), o]


@njit(nogil=True, cache=True)
def find_ids(ids_I: Any, wanted_M: Any, places_M: Any) -> None:
    """Write the place of each id among ascending ones; -1 where it is not there."""
    for m in range(len(wanted_M)):
        low, high = 0, len(ids_I)
        while low < high:
            middle = (low + high) >> 1
            if ids_I[middle] < wanted_M[m]:
                low = middle + 1
            else:
                high = middle
        places_M[m] = low if low < len(ids_I) and ids_I[low] == wanted_M[m] else -1


@njit(nogil=True, cache=True)
def is_among(ids_V: Any, wanted: Any) -> Any:
    """Whether an id is among ascending ones."""
    place = np.searchsorted(ids_V, wanted)
    return place < len(ids_V) and ids_V[place] == wanted


@njit(nogil=True, cache=True)
def keep_passing(
    ids_I: Any,
    offsets_I1: Any,
    words_W: Any,
    kind: Any,
    place: Any,
    lengths_at: Any,
    num_head: Any,
    ids_V: Any,
    low: Any,
    high: Any,
    passes_I: Any,
) -> None:
    """Unmark the items that do not have one of some ascending ids, or a number in a range.

    `place`: which word of an item holds the id or the number, or which of its lists. Lists begin after `num_head`
    words, and their lengths are at `lengths_at`.
    """
    numbers_W = words_W.view(np.float64)
    for i in range(len(ids_I)):
        if not passes_I[i]:
            continue
        start, passes = offsets_I1[i], False
        if kind == OWN_ID:
            passes = is_among(ids_V, ids_I[i])
        elif kind == OTHER_ID:
            passes = is_among(ids_V, words_W[start + place])
        elif kind == NUMBER:
            number = np.float32(numbers_W[start + place])
            passes = low <= number <= high
        else:
            first = start + num_head
            for earlier in range(place):
                first += words_W[start + lengths_at + earlier]
            for w in range(first, first + words_W[start + lengths_at + place]):
                passes |= is_among(ids_V, words_W[w])
        passes_I[i] = passes


@njit(nogil=True, cache=True)
def mark_equal(
    places_M: Any,
    offsets_I1: Any,
    words_W: Any,
    vectors_IO: Any,
    offsets_M1: Any,
    newer_W: Any,
    newer_MO: Any,
    near_cosine: Any,
    same_M: Any,
) -> None:
    """Mark the newer items that have the words of the older one at their place, and almost its vector."""
    for m in range(len(places_M)):
        i = places_M[m]
        same_M[m] = i >= 0 and offsets_I1[i + 1] - offsets_I1[i] == offsets_M1[m + 1] - offsets_M1[m]
        if not same_M[m]:
            continue
        for w in range(offsets_M1[m + 1] - offsets_M1[m]):
            same_M[m] &= words_W[offsets_I1[i] + w] == newer_W[offsets_M1[m] + w]
        cosine = np.float32(0)
        for o in range(newer_MO.shape[1]):
            cosine += vectors_IO[i, o] * newer_MO[m, o]
        same_M[m] &= cosine >= near_cosine


@njit(nogil=True, cache=True)
def unpack_items(
    places_M: Any,
    ids_I: Any,
    offsets_I1: Any,
    words_W: Any,
    id_column: Any,
    numbers_CL: Any,
    num_categorical: Any,
    num_dense: Any,
) -> Any:
    """Return features_K, ids_K as `lookup_keys` orders them, offsets_LM1, and the words of numbers (M, F)."""
    num_items, num_lists = len(places_M), len(numbers_CL) - num_categorical
    offsets_LM1 = np.zeros((num_lists, num_items + 1), np.int64)
    dense_MF = np.empty((num_items, num_dense), np.int64)
    total = num_items * num_categorical
    for m in range(num_items):
        lengths_at = offsets_I1[places_M[m]] + num_categorical - 1
        for place in range(num_lists):
            offsets_LM1[place, m + 1] = offsets_LM1[place, m] + words_W[lengths_at + place]
            total += words_W[lengths_at + place]
    features_K, ids_K = np.empty(total, np.uint16), np.empty(total, np.int64)
    for m in range(num_items):
        i = places_M[m]
        at = offsets_I1[i]
        for c in range(num_categorical):
            features_K[m * num_categorical + c] = numbers_CL[c]
            if c == id_column:
                ids_K[m * num_categorical + c] = ids_I[i]
            else:
                ids_K[m * num_categorical + c] = words_W[at]
                at += 1
        at += num_lists
        for f in range(num_dense):
            dense_MF[m, f] = words_W[at + f]
        at += num_dense
        start = num_items * num_categorical
        for place in range(num_lists):
            for k in range(start + offsets_LM1[place, m], start + offsets_LM1[place, m + 1]):
                features_K[k], ids_K[k] = numbers_CL[num_categorical + place], words_W[at]
                at += 1
            start += offsets_LM1[place, num_items]
    return features_K, ids_K, offsets_LM1, dense_MF


unpack_items_holding_gil = holding_gil(unpack_items)
