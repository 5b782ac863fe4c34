"""JSON strings: find their end, validate them, unescape them, and turn them into ids."""

from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import STRING_SEED, mix64
from springtide.kernels.cpu.intrinsics.instructions import trailing_zeros
from springtide.kernels.njit import njit
from springtide.stream.decode.parsers.byte_ops import OPTIONS, byte_at, compiled, inlined, load_word, partial_word

QUOTE, BACKSLASH = 34, 92
# each byte of a word
ONES = np.uint64(0x0101_0101_0101_0101)
HIGHS = np.uint64(0x8080_8080_8080_8080)
QUOTES, BACKSLASHES, SPACES = ONES * np.uint64(QUOTE), ONES * np.uint64(BACKSLASH), ONES * np.uint64(32)
INT64_LIMIT = np.uint64(2**63)


@compiled
def scan_string(buffer: Any, at: Any, end: Any) -> Any:
    """(position of the closing quote, whether the string has escapes); a position of -1 if it is not a valid string.

    `at` is after the opening quote. Validates UTF-8 and escapes.
    """
    escaped = False
    while at < end:
        if at + 8 <= end:
            word = load_word(buffer, np.uint64(at))
            quotes, backslashes = word ^ QUOTES, word ^ BACKSLASHES
            # in each of these the lowest set bit is a true hit: borrows only spread upward
            hits = ((quotes - ONES) & ~quotes) | ((backslashes - ONES) & ~backslashes) | ((word - SPACES) & ~word)
            hits = (hits | word) & HIGHS
            if hits == np.uint64(0):
                at += 8
                continue
            at += np.int64(trailing_zeros(hits) >> np.uint64(3))
        byte = buffer[np.uint64(at)]
        if byte == QUOTE:
            return at, escaped
        if byte == BACKSLASH:
            escaped = True
            length = escape_length(buffer, at, end)
        elif byte < 32:
            length = 0
        elif byte < 128:
            length = 1
        else:
            length = sequence_length(buffer, at, end)
        if length == 0:
            break
        at += length
    return np.int64(-1), escaped


@compiled
def sequence_length(buffer: Any, at: Any, end: Any) -> Any:
    """The number of bytes of the UTF-8 sequence beyond ASCII at `at`; 0 if it is invalid (Unicode, table 3-7)."""
    first, second = byte_at(buffer, at, end), byte_at(buffer, at + 1, end)
    if first < 0xC2 or first > 0xF4 or second & 0xC0 != 0x80:
        return 0
    if first < 0xE0:
        return 2
    if byte_at(buffer, at + 2, end) & 0xC0 != 0x80:
        return 0
    if first < 0xF0:
        overlong_or_surrogate = (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F)
        return 0 if overlong_or_surrogate else 3
    if byte_at(buffer, at + 3, end) & 0xC0 != 0x80:
        return 0
    return 0 if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F) else 4


@compiled
def code_unit(buffer: Any, at: Any, end: Any) -> Any:
    """The UTF-16 unit of a backslash, u and four hexadecimal digits at `at`; -1 if it is malformed."""
    if at + 6 > end or buffer[np.uint64(at)] != BACKSLASH or buffer[np.uint64(at + 1)] != 117:
        return -1
    unit = np.int64(0)
    for i in range(2, 6):
        byte = np.int64(buffer[np.uint64(at + i)])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        unit = 16 * unit + digit
    return unit


@compiled
def escape_length(buffer: Any, at: Any, end: Any) -> Any:
    """The number of bytes of the escape at `at`, 12 for a surrogate pair; 0 if it is malformed or half a pair."""
    byte = byte_at(buffer, at + 1, end)
    if byte != 117:
        simple = byte == 34 or byte == 92 or byte == 47 or byte == 98 or byte == 102
        return 2 if simple or byte == 110 or byte == 114 or byte == 116 else 0
    unit = code_unit(buffer, at, end)
    if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
        return 0
    if 0xD800 <= unit <= 0xDBFF:
        return 12 if 0xDC00 <= code_unit(buffer, at + 6, end) <= 0xDFFF else 0
    return 6


@compiled
def unescape(buffer: Any, at: Any, close: Any, scratch: Any) -> Any:
    """Unescape a valid string into scratch as UTF-8 and return its length: at most close - at."""
    length = 0
    while at < close:
        byte = buffer[np.uint64(at)]
        if byte != BACKSLASH:
            scratch[length] = byte
            length += 1
            at += 1
            continue
        byte = buffer[np.uint64(at + 1)]
        if byte != 117:
            if byte == 98:
                byte = np.uint8(8)
            elif byte == 102:
                byte = np.uint8(12)
            elif byte == 110:
                byte = np.uint8(10)
            elif byte == 114:
                byte = np.uint8(13)
            elif byte == 116:
                byte = np.uint8(9)
            scratch[length] = byte
            length += 1
            at += 2
            continue
        code = code_unit(buffer, at, close)
        at += 6
        if 0xD800 <= code <= 0xDBFF:
            code = 0x10000 + ((code - 0xD800) << 10) + code_unit(buffer, at, close) - 0xDC00
            at += 6
        if code < 0x80:
            scratch[length] = np.uint8(code)
            length += 1
            continue
        num_following = 1 if code < 0x800 else 2 if code < 0x10000 else 3
        lead = 0xC0 if num_following == 1 else 0xE0 if num_following == 2 else 0xF0
        scratch[length] = np.uint8(lead | (code >> (6 * num_following)))
        for i in range(num_following):
            scratch[length + 1 + i] = np.uint8(0x80 | ((code >> (6 * (num_following - 1 - i))) & 0x3F))
        length += 1 + num_following
    return length


@inlined
def string_id(buffer: Any, start: Any, length: Any) -> Any:
    """(id, whether it is a hash) of a string: the same as springtide_client.keys.encode_id."""
    if 0 < length <= 20:
        negative = buffer[np.uint64(start)] == 45
        first = start + 1 if negative else start
        num_digits = start + length - first
        if 0 < num_digits <= 19:
            number = np.uint64(0)
            at = first
            while at < start + length:
                digit = buffer[np.uint64(at)] - np.uint8(48)
                if digit > np.uint8(9):
                    break
                number = number * np.uint64(10) + np.uint64(digit)
                at += 1
            canonical = at == start + length and (buffer[np.uint64(first)] != 48 or (num_digits == 1 and not negative))
            if canonical and number < INT64_LIMIT:
                return -np.int64(number) if negative else np.int64(number), False
            if canonical and negative and number == INT64_LIMIT:
                return np.int64(-(2**63)), False
    state = mix64(STRING_SEED ^ np.uint64(length))
    done = 0
    while done + 8 <= length:
        state = mix64(state ^ load_word(buffer, np.uint64(start + done)))
        done += 8
    if done < length:
        state = mix64(state ^ partial_word(buffer, start + done, length - done))
    return np.int64(state), True


@njit(cache=True, **OPTIONS)
def write_string_ids(text_B: Any, offsets_M1: Any, ids_M: Any, is_hashed_M: Any) -> None:
    """Write the ids of strings that lie one after another, and whether each is a hash."""
    for m in range(len(ids_M)):
        ids_M[m], is_hashed_M[m] = string_id(text_B, offsets_M1[m], offsets_M1[m + 1] - offsets_M1[m])
