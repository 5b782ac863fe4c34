"""Writes the columns of an Arrow message to rows, as arrow_columns.py writes those that pyarrow has read.

The message was checked (arrow_checks.py): every position that is read here lies within it.
"""

from typing import Any

import numpy as np

from springtide.stream.decode.parsers.arrow_checks import bit_at, buffer_of, length_of, nulls_of, number_at, read_piece
from springtide.stream.decode.parsers.arrow_layout import (
    BOOLEAN,
    FLOAT,
    INDEX,
    INTEGER,
    ITEMS,
    NULL,
    STRUCT,
    TEXT,
    UNSIGNED,
)
from springtide.stream.decode.parsers.byte_ops import double_of, float_of, inlined, load_word
from springtide.stream.decode.parsers.field_table import CATEGORICAL, DENSE, LABEL, LIST, TIME
from springtide.stream.decode.parsers.json_strings import INT64_LIMIT, string_id
from springtide.stream.decode.parsers.json_values import NUM_RECORDS
from springtide.stream.decode.parsers.typed_values import (
    note_string,
    write_float,
    write_id,
    write_integer,
    write_null,
    write_number,
)
from springtide_client.encode import FLOAT32_OVERFLOW
from springtide_client.targets import EARLIEST_MS

# times whose milliseconds int64 holds, in the coarsest unit that there is
MAX_TIME = 1 << 36


@inlined
def is_null_at(buffer: Any, program: Any, pieces: Any, piece: Any, a: Any, index: Any) -> Any:
    """True if a value, or a struct that it is in, is null."""
    while a >= 0 and program.kind_A[a] != NULL:
        if nulls_of(buffer, program, pieces, piece, a) > 0:
            valid, _ = buffer_of(buffer, program, pieces, piece, program.buffer_A[a])
            if not bit_at(buffer, valid, index):
                return True
        a = program.parent_A[a]
        if a >= 0 and program.kind_A[a] != STRUCT:
            return False
    return a >= 0


@inlined
def may_be_null(buffer: Any, program: Any, pieces: Any, piece: Any, a: Any) -> Any:
    """True if a node, or a struct that it is in, has nulls."""
    while a >= 0:
        if nulls_of(buffer, program, pieces, piece, a) > 0:
            return True
        a = program.parent_A[a]
        if a >= 0 and program.kind_A[a] != STRUCT:
            return False
    return False


@inlined
def write_value(
    buffer: Any,
    values: Any,
    program: Any,
    pieces: Any,
    piece: Any,
    a: Any,
    index: Any,
    text: Any,
    fields: Any,
    j: Any,
    n: Any,
    out: Any,
    work: Any,
    latest: Any,
) -> Any:
    """Write a value that is not null to row n, or append it to the row's list."""
    kind, width = program.kind_A[a], program.width_A[a]
    if kind == INTEGER:
        value = number_at(buffer, values, width, program.is_signed_A[a], index)
        factor, divisor = program.factor_A[a], program.divisor_A[a]
        if factor != 1:
            if abs(value) > MAX_TIME:
                return False
            value *= factor
        elif divisor != 1:
            if value < 0:
                return False
            value //= divisor
        return write_integer(fields, j, value, n, out, work, latest)
    if kind == FLOAT:
        word = load_word(buffer, np.uint64(values + index * width))
        return write_float(fields, j, float_of(word) if width == 4 else double_of(word), n, out, work, latest)
    if kind == BOOLEAN:
        return write_integer(fields, j, np.int64(1 if bit_at(buffer, values, index) else 0), n, out, work, latest)
    if kind == UNSIGNED:
        word = load_word(buffer, np.uint64(values + index * 8))
        if fields.role_J[j] == CATEGORICAL or fields.role_J[j] == LIST:
            return word < INT64_LIMIT and write_id(fields, j, np.int64(word), n, out, work)
        return write_number(fields, j, np.float64(word), n, out)
    if kind == TEXT:
        first = number_at(buffer, values, width, True, index)
        length = number_at(buffer, values, width, True, index + 1) - first
        id_, is_hashed = string_id(buffer, text + first, length)
        return write_id(fields, j, id_, n, out, work) and (
            not is_hashed or note_string(fields.feature_J[j], id_, text + first, length, work)
        )
    dictionary = program.dictionary_A[a]
    value = number_at(buffer, values, width, program.is_signed_A[a], index)
    d = pieces.first_S[dictionary] + value
    id_ = pieces.id_D[d]
    if not write_id(fields, j, id_, n, out, work):
        return False
    note = work.counts[NUM_RECORDS] * len(fields.role_J) + j
    if not pieces.is_hashed_D[d] or pieces.noted_D[d] == note:
        return True
    pieces.noted_D[d] = note
    node = program.first_node_S[dictionary]
    offsets, _ = buffer_of(buffer, program, pieces, dictionary, 1)
    text, _ = buffer_of(buffer, program, pieces, dictionary, 2)
    first = number_at(buffer, offsets, program.width_A[node], True, value)
    length = number_at(buffer, offsets, program.width_A[node], True, value + 1) - first
    return note_string(fields.feature_J[j], id_, text + first, length, work)


@inlined
def is_null_value(buffer: Any, values: Any, program: Any, pieces: Any, a: Any, index: Any) -> Any:
    """True if an index that is not null is that of a null of its dictionary."""
    if program.kind_A[a] != INDEX:
        return False
    dictionary = program.dictionary_A[a]
    node = program.first_node_S[dictionary]
    value = number_at(buffer, values, program.width_A[a], program.is_signed_A[a], index)
    return is_null_at(buffer, program, pieces, dictionary, node, value)


@inlined
def read_dictionaries(buffer: Any, program: Any, pieces: Any) -> None:
    """Write the ids of the values of those dictionaries that fields are in."""
    count = np.int64(0)
    for piece in range(1, len(program.num_rows_S) - 1):
        pieces.first_S[piece] = count
        if not program.is_used_S[piece]:
            continue
        node = program.first_node_S[piece]
        width = program.width_A[node]
        offsets, _ = buffer_of(buffer, program, pieces, piece, 1)
        text, _ = buffer_of(buffer, program, pieces, piece, 2)
        for index in range(length_of(buffer, program, pieces, piece, node)):
            first = number_at(buffer, offsets, width, True, index)
            length = number_at(buffer, offsets, width, True, index + 1) - first
            pieces.id_D[count], pieces.is_hashed_D[count] = string_id(buffer, text + first, length)
            count += 1


@inlined
def write_lists(
    buffer: Any,
    program: Any,
    pieces: Any,
    piece: Any,
    a: Any,
    fields: Any,
    j: Any,
    row: Any,
    num_rows: Any,
    out: Any,
    work: Any,
) -> Any:
    """Write a column of lists to rows from `row` on; False where the reference must decide."""
    width, column, limit = program.width_A[a], np.uint64(fields.column_J[j]), fields.limit_J[j]
    has_nulls = may_be_null(buffer, program, pieces, piece, a)
    element = a + 1
    have_nulls = nulls_of(buffer, program, pieces, piece, element) > 0
    is_dictionary = program.kind_A[element] == INDEX
    offsets, values, text = np.int64(0), np.int64(0), np.int64(0)
    if program.kind_A[a] == ITEMS:
        offsets, _ = buffer_of(buffer, program, pieces, piece, program.buffer_A[a] + 1)
    b = program.buffer_A[element]
    if program.kind_A[element] != NULL:
        values, _ = buffer_of(buffer, program, pieces, piece, b + 1)
        if program.kind_A[element] == TEXT:
            text, _ = buffer_of(buffer, program, pieces, piece, b + 2)
    for index in range(num_rows):
        n = np.uint64(row + index)
        out.start_NP[n, column] = 0
        out.length_NP[n, column] = 0
        if has_nulls and is_null_at(buffer, program, pieces, piece, a, index):
            continue
        if program.kind_A[a] == ITEMS:
            first = number_at(buffer, offsets, width, True, index)
            last = number_at(buffer, offsets, width, True, index + 1)
        else:
            first, last = index * width, (index + 1) * width
        for e in range(first, last):
            if have_nulls and is_null_at(buffer, program, pieces, piece, element, e):
                continue
            if is_dictionary and is_null_value(buffer, values, program, pieces, element, e):
                continue
            if not write_value(
                buffer, values, program, pieces, piece, element, e, text, fields, j, n, out, work, np.int64(0)
            ):
                return False
        num_cut = out.length_NP[n, column] + limit
        if limit < 0 and num_cut > 0:
            out.start_NP[n, column] += num_cut
            out.length_NP[n, column] -= num_cut
    return True


@inlined
def write_column(
    buffer: Any,
    program: Any,
    pieces: Any,
    piece: Any,
    fields: Any,
    j: Any,
    row: Any,
    num_rows: Any,
    out: Any,
    work: Any,
    latest: Any,
) -> Any:
    """Write a batch's column to rows from `row` on; False where the reference must decide."""
    role, column, a = fields.role_J[j], np.uint64(fields.column_J[j]), program.node_J[j]
    kind = program.kind_A[a] if a >= 0 else np.int64(NULL)
    if kind == NULL:
        for null_row in range(row, row + num_rows):
            write_null(fields, j, null_row, out)
        return role != TIME
    if role == LIST:
        return write_lists(buffer, program, pieces, piece, a, fields, j, row, num_rows, out, work)
    width = program.width_A[a]
    has_nulls = may_be_null(buffer, program, pieces, piece, a)
    values, _ = buffer_of(buffer, program, pieces, piece, program.buffer_A[a] + 1)
    good = True
    if not has_nulls and kind == INTEGER and program.factor_A[a] == 1 and program.divisor_A[a] == 1:
        is_signed = program.is_signed_A[a]
        if role == CATEGORICAL:
            for index in range(num_rows):
                value = number_at(buffer, values, width, is_signed, index)
                out.categorical_NC[np.uint64(row + index), column] = value
            return True
        if role == TIME:
            for index in range(num_rows):
                value = number_at(buffer, values, width, is_signed, index)
                out.event_ms_N[np.uint64(row + index)] = value
                good = good and (value == 0 or EARLIEST_MS <= value <= latest)
            return good
        if role == LABEL:
            for index in range(num_rows):
                value = number_at(buffer, values, width, is_signed, index)
                out.labels_NL[np.uint64(row + index), column] = value
                good = good and 0 <= value <= 1
            return good
    if not has_nulls and kind == FLOAT and role in (DENSE, LABEL):
        for index in range(num_rows):
            word = load_word(buffer, np.uint64(values + index * width))
            number = float_of(word) if width == 4 else double_of(word)
            good = good and abs(number) < FLOAT32_OVERFLOW
            if role == DENSE:
                out.dense_NF[np.uint64(row + index), column] = number
            else:
                out.labels_NL[np.uint64(row + index), column] = number
                good = good and 0 <= number <= 1
        return good
    text = np.int64(0)
    if kind == TEXT:
        text, _ = buffer_of(buffer, program, pieces, piece, program.buffer_A[a] + 2)
    for index in range(num_rows):
        n = np.uint64(row + index)
        if (has_nulls and is_null_at(buffer, program, pieces, piece, a, index)) or is_null_value(
            buffer, values, program, pieces, a, index
        ):
            write_null(fields, j, n, out)
            good = good and role != TIME
        else:
            good = good and write_value(
                buffer, values, program, pieces, piece, a, index, text, fields, j, n, out, work, latest
            )
    return good


@inlined
def write_message(
    buffer: Any, at: Any, end: Any, program: Any, pieces: Any, fields: Any, row: Any, out: Any, work: Any, latest: Any
) -> Any:
    """Write the rows of a message that was checked; False where the reference must decide."""
    at += program.start_S[1]
    last = len(program.num_rows_S) - 1
    for piece in range(1, last):
        at, _ = read_piece(buffer, at, end, program, pieces, piece)
    read_dictionaries(buffer, program, pieces)
    while end - at > 8:
        at, num_rows = read_piece(buffer, at, end, program, pieces, last)
        for j in range(len(fields.role_J)):
            if not write_column(buffer, program, pieces, last, fields, j, row, num_rows, out, work, latest):
                return False
        num_labels = out.labels_NL.shape[1]
        for n in range(row, row + num_rows):
            is_labelled = False
            for label in range(num_labels):
                is_labelled = is_labelled or not np.isnan(out.labels_NL[np.uint64(n), np.uint64(label)])
            if not is_labelled:
                return False
        row += num_rows
    return True
