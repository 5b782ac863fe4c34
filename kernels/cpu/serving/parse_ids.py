"""Lists of ids read without a Python object each: integers in JSON and MessagePack, texts end to end.

Anything else is for a real parser.
"""

# B bytes of a list, N ids
from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_texts
from springtide.kernels.njit import njit

NOT_PLAIN = -1  # something other than int64 numbers is in the list, or more of them than there is room for

COMMA, OPEN, CLOSE, MINUS, ZERO = (ord(text) for text in ",[]-0")
# the largest int64 is a digit more than ten times this
TENTH, LAST_DIGIT = np.uint64((2**63 - 1) // 10), np.uint64(7)


@njit(nogil=True, cache=True)
def read_json_ids(text_B: Any, ids_N: Any) -> Any:
    """Read "[1, -2, 3]" into `ids_N`; returns how many, or NOT_PLAIN where that is not all there is."""
    end, at, count = len(text_B), skip_spaces(text_B, 0), 0
    if at >= end or text_B[at] != OPEN:
        return NOT_PLAIN
    at = skip_spaces(text_B, at + 1)
    if at < end and text_B[at] == CLOSE:
        return 0 if skip_spaces(text_B, at + 1) == end else NOT_PLAIN
    while at < end:
        negative = text_B[at] == MINUS
        at += np.int64(negative)
        first, number = at, np.uint64(0)
        while at < end:
            digit = np.uint64(text_B[at]) - np.uint64(ZERO)  # wraps around: anything else is above 9
            if digit > np.uint64(9):
                break
            if number > TENTH or (number == TENTH and digit > LAST_DIGIT + np.uint64(negative)):
                return NOT_PLAIN
            number = number * np.uint64(10) + digit
            at += 1
        is_empty = at == first
        if is_empty or (text_B[first] == ZERO and (at > first + 1 or negative)) or count == len(ids_N):
            return NOT_PLAIN
        ids_N[count] = np.int64(np.uint64(0) - number) if negative else np.int64(number)
        count += 1
        at = skip_spaces(text_B, at)
        if at >= end:
            return NOT_PLAIN
        if text_B[at] == CLOSE:
            return count if skip_spaces(text_B, at + 1) == end else NOT_PLAIN
        if text_B[at] != COMMA:
            return NOT_PLAIN
        at = skip_spaces(text_B, at + 1)
    return NOT_PLAIN


@njit(nogil=True, cache=True)
def skip_spaces(text_B: Any, at: Any) -> Any:
    """The next byte that is no white space of JSON's."""
    while at < len(text_B) and (text_B[at] == 32 or 9 <= text_B[at] <= 10 or text_B[at] == 13):
        at += 1
    return at


@njit(nogil=True, cache=True)
def read_msgpack_ids(bytes_B: Any, ids_N: Any) -> Any:
    """Read ids from a MessagePack array of integers."""
    end = len(bytes_B)
    if end == 0:
        return NOT_PLAIN
    head = bytes_B[0]
    if 0x90 <= head <= 0x9F:
        count, at = np.uint64(head & 15), np.int64(1)
    elif (head == 0xDC and end >= 3) or (head == 0xDD and end >= 5):
        width = 2 if head == 0xDC else 4
        count, at = big_endian(bytes_B, 1, width), np.int64(1 + width)
    else:
        return NOT_PLAIN
    if count > np.uint64(len(ids_N)):
        return NOT_PLAIN
    for n in range(np.int64(count)):
        if at >= end:
            return NOT_PLAIN
        kind = bytes_B[at]
        at += 1
        if kind < 0x80:
            ids_N[n] = np.int64(kind)
        elif kind >= 0xE0:
            ids_N[n] = np.int64(np.int8(kind))
        elif 0xCC <= kind <= 0xD3:
            size = 1 << ((np.int64(kind) - 0xCC) & 3)
            if at + size > end:
                return NOT_PLAIN
            number = big_endian(bytes_B, at, size)
            at += size
            if kind >= 0xD0:  # signed
                unused = np.uint64(64 - 8 * size)
                ids_N[n] = np.int64(number << unused) >> np.int64(unused)
            elif number >> np.uint64(63):
                return NOT_PLAIN
            else:
                ids_N[n] = np.int64(number)
        else:
            return NOT_PLAIN
    return np.int64(count) if at == end else NOT_PLAIN


@njit(nogil=True, cache=True)
def read_text_ids(text_B: Any, offsets_N1: Any) -> Any:
    """The ids of UTF-8 texts that lie end to end: springtide_client.keys.encode_id."""
    ids_N = hash_texts(text_B, offsets_N1)
    for n in range(len(ids_N)):
        at, end = offsets_N1[n], offsets_N1[n + 1]
        negative = at < end and text_B[at] == MINUS
        first = at + np.int64(negative)
        # one that begins with 0 is the 0 alone; the limit of digits keeps `number` from wrapping around
        if not 0 < end - first <= 19 or (text_B[first] == ZERO and (end > first + 1 or negative)):
            continue
        number = np.uint64(0)
        for at in range(first, end):
            digit = np.uint64(text_B[at]) - np.uint64(ZERO)
            if digit > np.uint64(9):
                break
            number = number * np.uint64(10) + digit
        else:
            if number <= np.uint64(2**63 - 1) + np.uint64(negative):
                ids_N[n] = np.int64(np.uint64(0) - number) if negative else np.int64(number)
    return ids_N


@njit(nogil=True, cache=True)
def big_endian(bytes_B: Any, at: Any, width: Any) -> Any:
    number = np.uint64(0)
    for i in range(width):
        number = number << np.uint64(8) | np.uint64(bytes_B[at + i])
    return number
