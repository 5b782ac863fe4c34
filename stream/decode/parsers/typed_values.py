"""Writes values that binary formats have as numbers and bytes to a row, as springtide_client.encode encodes them.

Every function returns False where the reference decoder must decide.
"""

from typing import Any

import numpy as np

from springtide.kernels.cpu.hashing import hash_key
from springtide.stream.decode.parsers.byte_ops import compiled, inlined, load_word
from springtide.stream.decode.parsers.field_table import (
    CATEGORICAL,
    DENSE,
    KEY,
    LABEL,
    LIST,
    TIME,
    VALUE_LABEL,
    WEIGHT,
)
from springtide.stream.decode.parsers.json_strings import HIGHS, sequence_length, string_id
from springtide.stream.decode.parsers.json_values import MISSING_ID, NUM_ELEMENTS, NUM_STRINGS
from springtide.stream.decode.parsers.seen_set import add_key
from springtide_client.encode import FLOAT32_OVERFLOW
from springtide_client.targets import EARLIEST_MS

NO_TIME = -1
NAN32 = np.float32(np.nan)


@inlined
def begin_row(fields: Any, n: Any, out: Any) -> None:
    """Write all fields as missing."""
    for j in range(len(fields.role_J)):
        write_null(fields, j, n, out)


@inlined
def write_null(fields: Any, j: Any, n: Any, out: Any) -> Any:
    """Write a field as missing."""
    role, column = fields.role_J[j], fields.column_J[j]
    if role == CATEGORICAL:
        out.categorical_NC[n, column] = MISSING_ID
    elif role == KEY:
        out.key_NK[n, column] = MISSING_ID
    elif role == DENSE:
        out.dense_NF[n, column] = NAN32
    elif role == LIST:
        out.start_NP[n, column] = 0
        out.length_NP[n, column] = 0
    elif role == TIME:
        out.event_ms_N[n] = NO_TIME
    elif role == WEIGHT:
        out.weights_N[n] = np.float32(1)
    else:
        out.labels_NL[n, column] = NAN32
    return True


@inlined
def end_row(fields: Any, n: Any, out: Any) -> Any:
    """Cut lists to their last elements; False where a label or the time is missing."""
    for j in range(len(fields.role_J)):
        role, column = fields.role_J[j], fields.column_J[j]
        if role == LIST and fields.limit_J[j] < 0:
            num_cut = out.length_NP[n, column] + fields.limit_J[j]
            if num_cut > 0:
                out.start_NP[n, column] += num_cut
                out.length_NP[n, column] -= num_cut
        elif role == TIME and out.event_ms_N[n] == NO_TIME:
            return False
    num_labels = 0
    for label in range(out.labels_NL.shape[1]):
        num_labels += 0 if np.isnan(out.labels_NL[n, label]) else 1
    return num_labels > 0 or not fields.needs_label


@inlined
def write_id(fields: Any, j: Any, id_: Any, n: Any, out: Any, work: Any) -> Any:
    """Write an id, or append it to the field's list; a list whose elements are not together is left."""
    role, column = fields.role_J[j], fields.column_J[j]
    if role == CATEGORICAL:
        out.categorical_NC[n, column] = id_
        return True
    if role == KEY:
        out.key_NK[n, column] = id_
        return True
    if role != LIST:
        return False
    at, length, limit = work.counts[NUM_ELEMENTS], out.length_NP[n, column], fields.limit_J[j]
    if limit > 0 and length == limit:
        return True
    if length == 0:
        out.start_NP[n, column] = at
    elif out.start_NP[n, column] + length != at:
        return False
    work.elements_E[np.uint64(at)] = id_
    work.counts[NUM_ELEMENTS] = at + 1
    out.length_NP[n, column] = length + 1
    return True


@inlined
def write_number(fields: Any, j: Any, value: Any, n: Any, out: Any) -> Any:
    """Write a float64 to a field that is a number."""
    role, column = fields.role_J[j], fields.column_J[j]
    if not abs(value) < FLOAT32_OVERFLOW:
        return False
    if role == DENSE:
        out.dense_NF[n, column] = value
    elif role == LABEL:
        out.labels_NL[n, column] = value
        return 0 <= value <= 1
    elif role == VALUE_LABEL:
        out.labels_NL[n, column] = value
        return value >= 0
    elif role == WEIGHT:
        out.weights_N[n] = value
        return value >= 0
    else:
        return False
    return True


@compiled
def write_integer(fields: Any, j: Any, value: Any, n: Any, out: Any, work: Any, latest: Any) -> Any:
    """Write an int64."""
    role = fields.role_J[j]
    if role in (CATEGORICAL, KEY, LIST):
        return write_id(fields, j, value, n, out, work)
    if role == TIME:
        out.event_ms_N[n] = value
        return value == 0 or EARLIEST_MS <= value <= latest
    return write_number(fields, j, np.float64(value), n, out)


@inlined
def write_boolean(fields: Any, j: Any, value: Any, n: Any, out: Any, work: Any, latest: Any) -> Any:
    """Write a boolean as 0 or 1; it is no time."""
    return fields.role_J[j] != TIME and write_integer(fields, j, value, n, out, work, latest)


@compiled
def write_float(fields: Any, j: Any, value: Any, n: Any, out: Any, work: Any, latest: Any) -> Any:
    """Write a float64."""
    role = fields.role_J[j]
    if role in (CATEGORICAL, KEY, LIST, TIME):
        if not abs(value) < 2.0**53 or value != np.floor(value):
            return False
        return write_integer(fields, j, np.int64(value), n, out, work, latest)
    return write_number(fields, j, value, n, out)


@compiled
def write_text(buffer: Any, start: Any, length: Any, fields: Any, j: Any, n: Any, out: Any, work: Any) -> Any:
    """Write a string as an id; one that is to be a number is left."""
    id_, is_hashed = string_id(buffer, start, length)
    return write_id(fields, j, id_, n, out, work) and (
        not is_hashed or note_string(fields.feature_J[j], id_, start, length, work)
    )


@inlined
def note_string(feature: Any, id_: Any, start: Any, length: Any, work: Any) -> Any:
    """Note a string whose id was not seen before; `start` < 0: it is symbol -1 - start of the parser."""
    if feature < 0:
        return True
    slot = add_key(work.seen_slots, work.seen_count, hash_key(feature, id_))
    if slot == -2:
        return False
    if slot >= 0:
        t = work.counts[NUM_STRINGS]
        work.string_feature_T[t] = feature
        work.string_id_T[t] = id_
        work.string_start_T[t] = start
        work.string_length_T[t] = length
        work.string_slot_T[t] = slot
        work.counts[NUM_STRINGS] = t + 1
    return True


@compiled
def write_symbol(symbol: Any, symbols: Any, fields: Any, j: Any, n: Any, out: Any, work: Any) -> Any:
    """Write a symbol of an enum by its number in the parser's symbols."""
    id_ = symbols.id_S[symbol]
    return write_id(fields, j, id_, n, out, work) and (
        not symbols.is_hashed_S[symbol]
        or note_string(fields.feature_J[j], id_, np.int64(-1) - symbol, np.int64(0), work)
    )


@compiled
def is_utf8(buffer: Any, at: Any, end: Any) -> Any:
    """Return True if these bytes are UTF-8."""
    while at < end:
        if at + 8 <= end and load_word(buffer, np.uint64(at)) & HIGHS == np.uint64(0):
            at += 8
        elif buffer[np.uint64(at)] < 128:
            at += 1
        else:
            length = sequence_length(buffer, at, end)
            if length == 0:
                return False
            at += length
    return True
