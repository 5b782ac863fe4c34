"""Skips the values of fields that are not in the schema, after checking that they are valid JSON."""

from typing import Any

import numpy as np

from springtide.stream.decode.json_parser.byte_ops import byte_at, skip_space
from springtide.stream.decode.json_parser.jit import compiled
from springtide.stream.decode.json_parser.numbers import REFUSED, parse_number
from springtide.stream.decode.json_parser.strings import QUOTE, scan_string

COMMA, COLON = 44, 58
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
# the kinds of the open values are bits of one word
MAX_DEPTH = 63
# up to this power any 19 digits fit in a float64; msgspec refuses larger numbers
MAX_POWER = 280


@compiled
def literal_length(buffer: Any, at: Any, end: Any) -> Any:
    """4 for null and true, 5 for false, 0 for anything else."""
    byte = byte_at(buffer, at, end)
    b1, b2, b3 = byte_at(buffer, at + 1, end), byte_at(buffer, at + 2, end), byte_at(buffer, at + 3, end)
    if byte == 110:
        return 4 if b1 == 117 and b2 == 108 and b3 == 108 else 0
    if byte == 116:
        return 4 if b1 == 114 and b2 == 117 and b3 == 101 else 0
    false = byte == 102 and b1 == 97 and b2 == 108 and b3 == 115 and byte_at(buffer, at + 4, end) == 101
    return 5 if false else 0


@compiled
def skip_name(buffer: Any, at: Any, end: Any) -> Any:
    """The position of the value after the name and the colon at `at`; -1 if they are malformed."""
    if byte_at(buffer, at, end) != QUOTE:
        return np.int64(-1)
    close, _ = scan_string(buffer, at + 1, end)
    if close < 0:
        return np.int64(-1)
    at = skip_space(buffer, close + 1, end)
    if byte_at(buffer, at, end) != COLON:
        return np.int64(-1)
    return skip_space(buffer, at + 1, end)


@compiled
def skip_scalar(buffer: Any, at: Any, end: Any) -> Any:
    """The position after the string, number or literal at `at`; -1 if it is malformed or the reference must decide."""
    byte = byte_at(buffer, at, end)
    if byte == QUOTE:
        close, _ = scan_string(buffer, at + 1, end)
        return close + 1 if close >= 0 else np.int64(-1)
    length = literal_length(buffer, at, end)
    if length > 0:
        return at + length
    at, kind, _, _, power = parse_number(buffer, at, end, False)
    return np.int64(-1) if kind == REFUSED or power > MAX_POWER else at


@compiled
def skip_value(buffer: Any, at: Any, end: Any) -> Any:
    """The position after the value at `at`; -1 if it is malformed or nested deeper than MAX_DEPTH."""
    depth = 0
    objects = np.uint64(0)  # the lowest bit is set if the innermost open value is an object
    while True:
        byte = byte_at(buffer, at, end)
        if byte in (OPEN_OBJECT, OPEN_LIST):
            inside = skip_space(buffer, at + 1, end)
            is_object = byte == OPEN_OBJECT
            if byte_at(buffer, inside, end) != (CLOSE_OBJECT if is_object else CLOSE_LIST):
                depth += 1
                if depth > MAX_DEPTH:
                    return np.int64(-1)
                objects = (objects << np.uint64(1)) | np.uint64(1 if is_object else 0)
                at = skip_name(buffer, inside, end) if is_object else inside
                if at < 0:
                    return np.int64(-1)
                continue
            at = inside + 1
        else:
            at = skip_scalar(buffer, at, end)
            if at < 0:
                return np.int64(-1)
        # a value ends here, and perhaps the values around it
        while True:
            if depth == 0:
                return at
            at = skip_space(buffer, at, end)
            byte = byte_at(buffer, at, end)
            is_object = objects & np.uint64(1) == np.uint64(1)
            if byte == COMMA:
                at = skip_space(buffer, at + 1, end)
                if is_object:
                    at = skip_name(buffer, at, end)
                    if at < 0:
                        return np.int64(-1)
                break
            if byte != (CLOSE_OBJECT if is_object else CLOSE_LIST):
                return np.int64(-1)
            at += 1
            depth -= 1
            objects >>= np.uint64(1)
