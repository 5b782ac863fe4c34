"""Parses the values of fields: numbers, times, ids and lists of ids, as springtide_client.encode encodes them.

Values of fields that are not in the schema are skipped, after checking that they are valid JSON.

Every function returns the position after the value; -1 (UNPARSED) leaves the record to the reference decoder.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.hashing import hash_key
from springtide.stream.decode.parsers.byte_ops import byte_at, compiled, inlined, skip_space
from springtide.stream.decode.parsers.json_numbers import INTEGER, REFUSED, parse_number, to_float
from springtide.stream.decode.parsers.json_strings import INT64_LIMIT, QUOTE, scan_string, string_id, unescape
from springtide.stream.decode.parsers.seen_set import add_key
from springtide_client.encode import FLOAT32_OVERFLOW
from springtide_client.keys import MISSING_ID as MISSING_ID_INT
from springtide_client.targets import EARLIEST_MS

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


MISSING_ID = np.int64(MISSING_ID_INT)
UNPARSED = np.int64(-1)
NULL, FALSE, TRUE = 110, 102, 116
NUM_ELEMENTS, NUM_STRINGS, NUM_RECORDS = 0, 1, 2


class Workspace(NamedTuple):
    """Arrays that the parser fills beside the columns, or keeps from record to record."""

    counts: npt.NDArray[np.int64]  # of elements and strings in this call, of records ever

    elements_E: npt.NDArray[np.int64]
    string_feature_T: npt.NDArray[np.uint16]
    string_id_T: npt.NDArray[np.int64]
    string_start_T: npt.NDArray[np.int64]  # in the buffer
    string_length_T: npt.NDArray[np.int64]  # negative: as JSON with escapes
    string_slot_T: npt.NDArray[np.int64]  # in seen_slots
    seen_slots: npt.NDArray[np.uint64]
    seen_count: npt.NDArray[np.int64]
    scratch: npt.NDArray[np.uint8]  # as long as the longest message
    last_record_X: npt.NDArray[np.int64]  # the record in which each field, then each object, last occurred
    name_order: npt.NDArray[np.int64]  # the name at each place of a record, as in the record before


@inlined
def read_number(buffer: Any, at: Any, end: Any) -> Any:
    """(position, a float64 within the range of float32): a number, a boolean, or a string that is a number. No null."""
    byte = byte_at(buffer, at, end)
    if byte in (TRUE, FALSE):
        length = literal_length(buffer, at, end)
        return at + length if length > 0 else UNPARSED, 1.0 if byte == TRUE else 0.0
    is_string = byte == QUOTE
    at, kind, negative, mantissa, power = parse_number(buffer, at + 1 if is_string else at, end, is_string)
    if kind == REFUSED or (is_string and byte_at(buffer, at, end) != QUOTE):
        return UNPARSED, 0.0
    if kind == INTEGER and not is_string:
        # Python's integer 0 has no sign
        value = -np.float64(mantissa) if negative and mantissa != np.uint64(0) else np.float64(mantissa)
    else:
        known, value = to_float(negative, mantissa, power)
        if not known or not abs(value) < FLOAT32_OVERFLOW:
            return UNPARSED, 0.0
    return at + 1 if is_string else at, value


@inlined
def read_time(buffer: Any, at: Any, end: Any, latest_ms: Any) -> Any:
    """(position, milliseconds): an integer, or a string that is one, neither mis-scaled nor in the future."""
    is_string = byte_at(buffer, at, end) == QUOTE
    at, kind, negative, mantissa, _ = parse_number(buffer, at + 1 if is_string else at, end, False)
    if kind != INTEGER or negative or mantissa >= INT64_LIMIT or (is_string and byte_at(buffer, at, end) != QUOTE):
        return UNPARSED, np.int64(0)
    event_ms = np.int64(mantissa)
    if (event_ms != 0 and event_ms < EARLIEST_MS) or event_ms > latest_ms:
        return UNPARSED, np.int64(0)
    return at + 1 if is_string else at, event_ms


@inlined
def read_id(buffer: Any, at: Any, end: Any, feature: Any, work: Any) -> Any:
    """(position, id) of any value but null; a string that has not been emitted yet is noted in the workspace."""
    byte = byte_at(buffer, at, end)
    if byte == QUOTE:
        start = at + 1
        close, escaped = scan_string(buffer, start, end)
        if close < 0:
            return UNPARSED, np.int64(0)
        if escaped:
            id_, hashed = string_id(work.scratch, 0, unescape(buffer, start, close, work.scratch))
        else:
            id_, hashed = string_id(buffer, start, close - start)
        if hashed and feature >= 0:
            slot = add_key(work.seen_slots, work.seen_count, hash_key(feature, id_))
            if slot == -2:
                return UNPARSED, np.int64(0)
            if slot >= 0:
                t = work.counts[NUM_STRINGS]
                work.string_feature_T[t] = feature
                work.string_id_T[t] = id_
                work.string_start_T[t] = start
                work.string_length_T[t] = start - close if escaped else close - start
                work.string_slot_T[t] = slot
                work.counts[NUM_STRINGS] = t + 1
        return close + 1, id_
    if byte in (TRUE, FALSE):
        length = literal_length(buffer, at, end)
        return at + length if length > 0 else UNPARSED, np.int64(1 if byte == TRUE else 0)
    at, kind, negative, mantissa, power = parse_number(buffer, at, end, False)
    if kind == INTEGER:
        if mantissa < INT64_LIMIT:
            return at, -np.int64(mantissa) if negative else np.int64(mantissa)
        return UNPARSED, np.int64(0)
    if kind == REFUSED:
        return UNPARSED, np.int64(0)
    known, value = to_float(negative, mantissa, power)
    if not known or not abs(value) < 2.0**53 or value != np.floor(value):
        return UNPARSED, np.int64(0)
    return at, np.int64(value)


@inlined
def read_list(buffer: Any, at: Any, end: Any, feature: Any, limit: Any, work: Any) -> Any:
    """(position, where in elements_E the list starts, its length) of a list; null elements are skipped."""
    start = work.counts[NUM_ELEMENTS]
    if byte_at(buffer, at, end) != OPEN_LIST:
        return UNPARSED, start, np.int64(0)
    length = np.int64(0)
    at = skip_space(buffer, at + 1, end)
    if byte_at(buffer, at, end) == CLOSE_LIST:
        return at + 1, start, length
    while True:
        if byte_at(buffer, at, end) == NULL:
            if literal_length(buffer, at, end) == 0:
                return UNPARSED, start, length
            at += 4
        else:
            at, id_ = read_id(buffer, at, end, feature, work)
            if at < 0:
                return UNPARSED, start, length
            if limit < 0 or length < limit:
                work.elements_E[np.uint64(start + length)] = id_
                length += 1
        at = skip_space(buffer, at, end)
        byte = byte_at(buffer, at, end)
        if byte == CLOSE_LIST:
            break
        if byte != COMMA:
            return UNPARSED, start, length
        at = skip_space(buffer, at + 1, end)
    work.counts[NUM_ELEMENTS] = start + length
    num_cut = max(0, length + limit) if limit < 0 else 0
    return at + 1, start + num_cut, length - num_cut
