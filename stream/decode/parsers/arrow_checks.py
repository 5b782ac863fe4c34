"""Finds the pieces of an Arrow message of a known layout, and checks what pyarrow's full validation does.

That buffers lie within the message and are long enough, offsets ascend, counts of nulls are right, text is UTF-8, and
indices are of their dictionary.
"""

# N messages, S pieces of a message, D values of dictionaries
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.stream.decode.parsers.arrow_layout import (
    BOOLEAN,
    BYTES,
    FIXED,
    FIXED_ITEMS,
    FLOAT,
    INDEX,
    INTEGER,
    ITEMS,
    NULL,
    STRUCT,
    TEXT,
    UNSIGNED,
)
from springtide.stream.decode.parsers.byte_ops import compiled, inlined, load_word
from springtide.stream.decode.parsers.json_strings import HIGHS
from springtide.stream.decode.parsers.typed_values import is_utf8

EIGHT, WORD_BITS = np.uint64(8), np.uint64(64)
END_OF_STREAM = np.uint64(0xFFFFFFFF)
MAX_LENGTH = 1 << 40
LEFT = -1  # rows of a message that pyarrow must decide


class Needs(NamedTuple):
    """The room that each message needs in the workspace: the most elements, strings, values of dictionaries."""

    elements_N: npt.NDArray[np.int64]
    strings_N: npt.NDArray[np.int64]
    dictionary_N: npt.NDArray[np.int64]


class Pieces(NamedTuple):
    """Where the pieces of the present message are, and the ids of its dictionaries' values."""

    at_S: npt.NDArray[np.int64]  # in the buffer
    body_S: npt.NDArray[np.int64]
    first_S: npt.NDArray[np.int64]  # in the arrays of D
    id_D: npt.NDArray[np.int64]
    is_hashed_D: npt.NDArray[np.bool_]
    noted_D: npt.NDArray[np.int64]  # the message and the field that noted the string last


@inlined
def word_at(buffer: Any, at: Any) -> Any:
    """The int64 at a position: every value is followed by the 8 bytes of the end of its stream."""
    return np.int64(load_word(buffer, np.uint64(at)))


@inlined
def size_at(buffer: Any, at: Any, place: Any) -> Any:
    """A number of the metadata that begins at `at`; one without a place is 0."""
    return word_at(buffer, at + place) if place > 0 else np.int64(0)


@inlined
def number_at(buffer: Any, at: Any, width: Any, is_signed: Any, index: Any) -> Any:
    """The integer of a number of bytes in an array that begins at `at`."""
    shift = WORD_BITS - EIGHT * np.uint64(width)
    word = load_word(buffer, np.uint64(at + index * width)) << shift
    return np.int64(word) >> np.int64(shift) if is_signed else np.int64(word >> shift)


@inlined
def bit_at(buffer: Any, at: Any, index: Any) -> Any:
    """True if the bit is set in a bitmap that begins at `at`."""
    return buffer[np.uint64(at + (index >> 3))] >> np.uint8(index & 7) & np.uint8(1) != np.uint8(0)


@inlined
def length_of(buffer: Any, program: Any, pieces: Any, piece: Any, a: Any) -> Any:
    """The number of values of a node."""
    return word_at(buffer, pieces.at_S[piece] + program.nodes_S[piece] + 16 * (a - program.first_node_S[piece]))


@inlined
def nulls_of(buffer: Any, program: Any, pieces: Any, piece: Any, a: Any) -> Any:
    """The number of nulls of a node."""
    return word_at(buffer, pieces.at_S[piece] + program.nodes_S[piece] + 16 * (a - program.first_node_S[piece]) + 8)


@inlined
def buffer_of(buffer: Any, program: Any, pieces: Any, piece: Any, b: Any) -> Any:
    """(position, bytes) of a buffer."""
    at = pieces.at_S[piece] + program.buffers_S[piece] + 16 * b
    return pieces.body_S[piece] + word_at(buffer, at), word_at(buffer, at + 8)


@inlined
def matches_piece(buffer: Any, at: Any, end: Any, program: Any, piece: Any) -> Any:
    """True if the metadata at a position is that of the layout's piece, but for its numbers."""
    start, stop = program.start_S[piece], program.start_S[piece + 1]
    if at + (stop - start) + 8 > end:
        return False
    shift = at - start
    while start < stop:
        found = load_word(buffer, np.uint64(start + shift)) ^ load_word(program.text_B, np.uint64(start))
        if found & load_word(program.mask_B, np.uint64(start)) != np.uint64(0):
            return False
        start += 8
    return True


@compiled
def count_unset(buffer: Any, at: Any, length: Any) -> Any:
    """The number of bits that are not set, of the first ones of a bitmap."""
    count = 0
    for index in range(length):
        count += 0 if bit_at(buffer, at, index) else 1
    return count


@compiled
def are_offsets(buffer: Any, at: Any, width: Any, length: Any, size: Any) -> Any:
    """True if the offsets of values ascend within a size."""
    last = number_at(buffer, at, width, True, 0)
    good = last >= 0
    for index in range(1, length + 1):
        offset = number_at(buffer, at, width, True, index)
        good = good and offset >= last
        last = offset
    return good and last <= size


@compiled
def is_text(buffer: Any, offsets: Any, width: Any, length: Any, text: Any, has_nulls: Any, valid: Any) -> Any:
    """True if the values that are not null are UTF-8."""
    at = text + number_at(buffer, offsets, width, True, 0)
    end = text + number_at(buffer, offsets, width, True, length)
    while at + 8 <= end and load_word(buffer, np.uint64(at)) & HIGHS == np.uint64(0):
        at += 8
    while at < end and buffer[np.uint64(at)] < 128:
        at += 1
    if at == end:
        return True
    for index in range(length):
        first = text + number_at(buffer, offsets, width, True, index)
        last = text + number_at(buffer, offsets, width, True, index + 1)
        if not (has_nulls and not bit_at(buffer, valid, index)) and not is_utf8(buffer, first, last):
            return False
    return True


@compiled
def is_valid_node(buffer: Any, program: Any, pieces: Any, piece: Any, a: Any, num_rows: Any) -> Any:
    """True if a node is what pyarrow takes for valid. The nodes before it, and all places of buffers, are."""
    kind, width, parent = program.kind_A[a], program.width_A[a], program.parent_A[a]
    length, num_nulls = length_of(buffer, program, pieces, piece, a), nulls_of(buffer, program, pieces, piece, a)
    if length < 0 or length > MAX_LENGTH or num_nulls < 0 or num_nulls > length:
        return False
    if parent < 0:
        good = length == num_rows
    elif program.kind_A[parent] == STRUCT:
        good = length == length_of(buffer, program, pieces, piece, parent)
    elif program.kind_A[parent] == FIXED_ITEMS:
        good = length == length_of(buffer, program, pieces, piece, parent) * program.width_A[parent]
    else:
        good = True  # its lists' offsets were compared with it
    if not good or kind == NULL:
        return good and num_nulls == length
    b = program.buffer_A[a]
    valid, size = buffer_of(buffer, program, pieces, piece, b)
    if num_nulls > 0 and (size < (length + 7) >> 3 or count_unset(buffer, valid, length) != num_nulls):
        return False
    if kind in (STRUCT, FIXED_ITEMS):
        return True
    values, size = buffer_of(buffer, program, pieces, piece, b + 1)
    if kind == BOOLEAN:
        return size >= (length + 7) >> 3
    if kind == INDEX:
        if size < length * width:
            return False
        dictionary = program.dictionary_A[a]
        most = length_of(buffer, program, pieces, dictionary, program.first_node_S[dictionary])
        for index in range(length):
            value = number_at(buffer, values, width, program.is_signed_A[a], index)
            if (value < 0 or value >= most) and not (num_nulls > 0 and not bit_at(buffer, valid, index)):
                return False
        return True
    if kind in (INTEGER, UNSIGNED, FLOAT, FIXED):
        return size >= length * width
    if length == 0:
        return True
    if size < (length + 1) * width:
        return False
    if kind == ITEMS:
        return are_offsets(buffer, values, width, length, length_of(buffer, program, pieces, piece, a + 1))
    text, size = buffer_of(buffer, program, pieces, piece, b + 2)
    return are_offsets(buffer, values, width, length, size) and (
        kind == BYTES or is_text(buffer, values, width, length, text, num_nulls > 0, valid)
    )


@inlined
def read_piece(buffer: Any, at: Any, end: Any, program: Any, pieces: Any, piece: Any) -> Any:
    """Note where the piece at a position is. Returns the position after it and its rows."""
    pieces.at_S[piece] = at
    pieces.body_S[piece] = at + program.start_S[piece + 1] - program.start_S[piece]
    size = size_at(buffer, at, program.body_bytes_S[piece])
    return pieces.body_S[piece] + size, size_at(buffer, at, program.num_rows_S[piece])


@inlined
def check_piece(buffer: Any, at: Any, end: Any, program: Any, pieces: Any, piece: Any) -> Any:
    """(position after the piece at `at`, its rows); a position of -1 where pyarrow must decide."""
    if not matches_piece(buffer, at, end, program, piece):
        return np.int64(-1), np.int64(0)
    size = size_at(buffer, at, program.body_bytes_S[piece])
    if size < 0 or size > end:
        return np.int64(-1), np.int64(0)
    at, num_rows = read_piece(buffer, at, end, program, pieces, piece)
    if at + 8 > end or num_rows < 0:
        return np.int64(-1), np.int64(0)
    for b in range(program.num_buffers_S[piece]):
        place = pieces.at_S[piece] + program.buffers_S[piece] + 16 * b
        offset, length = word_at(buffer, place), word_at(buffer, place + 8)
        if offset < 0 or length < 0 or offset & 7 != 0 or offset > size or length > size - offset:
            return np.int64(-1), np.int64(0)
    for a in range(program.first_node_S[piece], program.first_node_S[piece + 1]):
        if not is_valid_node(buffer, program, pieces, piece, a, num_rows):
            return np.int64(-1), np.int64(0)
    return at, num_rows


@inlined
def check_message(buffer: Any, at: Any, end: Any, program: Any, pieces: Any, n: Any, most_rows: Any, needs: Any) -> Any:
    """The rows of a message, after a full validation; LEFT where pyarrow must decide."""
    if not matches_piece(buffer, at, end, program, 0):
        return np.int64(LEFT)
    at += program.start_S[1]
    last = len(program.num_rows_S) - 1
    needs.elements_N[n], needs.strings_N[n], needs.dictionary_N[n] = 0, 0, 0
    for piece in range(1, last):
        at, num_rows = check_piece(buffer, at, end, program, pieces, piece)
        if at < 0:
            return np.int64(LEFT)
        needs.dictionary_N[n] += num_rows
    total = np.int64(0)
    while end - at > 8:
        at, num_rows = check_piece(buffer, at, end, program, pieces, last)
        if at < 0:
            return np.int64(LEFT)
        total += num_rows
        if total > most_rows:
            return np.int64(LEFT)
        for a in range(program.first_node_S[last], program.first_node_S[last + 1]):
            if program.field_A[a] >= 0:
                parent, kind = program.parent_A[a], program.kind_A[a]
                length = length_of(buffer, program, pieces, last, a)
                if kind in (TEXT, INDEX):
                    needs.strings_N[n] += length
                if parent >= 0 and program.field_A[parent] >= 0 and kind != NULL:
                    needs.elements_N[n] += length
    return total if end - at == 8 and load_word(buffer, np.uint64(at)) == END_OF_STREAM else np.int64(LEFT)
