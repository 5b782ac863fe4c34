"""Texts beside a record's value: finds a header, and turns bytes into ids as strings of messages are."""

# N records, H bytes of a header's name
from typing import Any

import numpy as np

from springtide.kernels.njit import njit
from springtide.stream.decode.parsers.byte_ops import OPTIONS, compiled
from springtide.stream.decode.parsers.json_strings import sequence_length, string_id

ABSENT, MALFORMED = -1, -2  # as the length of a text
NUMBER, HASHED, NO_TEXT = 0, 1, 2  # what an id was made of


@compiled
def read_varint(buffer: Any, at: Any) -> Any:
    """(a zig-zag varint, the position after it); a position of -1 if it runs over the end of the buffer."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < len(buffer) and shift < np.uint64(64):
        byte = buffer[np.uint64(at)]
        at += 1
        value |= np.uint64(byte & np.uint8(0x7F)) << shift
        if byte < np.uint8(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled
def find_header(buffer: Any, at: Any, name_H: Any) -> Any:
    """(start, length) of the last header of this name, of those that begin at `at`; ABSENT, also for a null."""
    start, length = np.int64(0), np.int64(ABSENT)
    num_headers, at = read_varint(buffer, at)
    if at < 0 or num_headers < 0:
        return start, np.int64(MALFORMED)
    for _ in range(num_headers):
        name_length, at = read_varint(buffer, at)
        if at < 0 or name_length < 0 or name_length > len(buffer) - at:
            return start, np.int64(MALFORMED)
        is_same = name_length == len(name_H)
        if is_same:
            for h in range(len(name_H)):
                is_same = is_same and buffer[np.uint64(at + h)] == name_H[h]
        value_length, at = read_varint(buffer, at + name_length)
        if at < 0 or value_length < -1 or value_length > len(buffer) - at:
            return start, np.int64(MALFORMED)
        if is_same:
            start, length = at, value_length
        at += max(value_length, 0)
    return start, length


@njit(cache=True, **OPTIONS)
def find_headers(buffer: Any, after_N: Any, name_H: Any, start_N: Any, length_N: Any) -> None:
    """Write where each record's last header of this name lies; `after_N`: the position after its value."""
    for n in range(len(after_N)):
        start_N[n], length_N[n] = find_header(buffer, after_N[n], name_H)


@compiled
def is_utf8(buffer: Any, start: Any, length: Any) -> Any:
    at, end = start, start + length
    while at < end:
        step = 1 if buffer[np.uint64(at)] < 128 else sequence_length(buffer, at, end)
        if step == 0:
            return False
        at += step
    return True


@njit(cache=True, **OPTIONS)
def write_text_ids(buffer: Any, start_N: Any, length_N: Any, ids_N: Any, kind_N: Any) -> None:
    """Write the id of each text that is not absent, and whether it is a NUMBER, HASHED, or NO_TEXT: not UTF-8."""
    for n in range(len(start_N)):
        kind_N[n] = NUMBER
        if length_N[n] < 0:
            continue
        if not is_utf8(buffer, start_N[n], length_N[n]):
            kind_N[n] = NO_TEXT
            continue
        ids_N[n], is_hashed = string_id(buffer, start_N[n], length_N[n])
        kind_N[n] = HASHED if is_hashed else NUMBER
