"""The fast path of MessagePack: a compiled loop walks a map's bytes once, and writes its fields into columns.

Left to the reference: names that come twice, names that are no strings, extensions (timestamps), integers beyond int64.
"""

# N records, J fields
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.intrinsics.specialize import named_specialization
from springtide.kernels.njit import njit
from springtide.stream.decode.parsers.binary_parser import BinaryParser, begin_record, fingerprint_of, undo_record
from springtide.stream.decode.parsers.byte_ops import (
    OPTIONS,
    compiled,
    double_of,
    float_of,
    inlined,
)
from springtide.stream.decode.parsers.field_table import LIST, build_hash_table, find_name, is_name
from springtide.stream.decode.parsers.json_values import NUM_ELEMENTS, NUM_RECORDS, NUM_STRINGS
from springtide.stream.decode.parsers.typed_values import (
    end_row,
    is_utf8,
    write_boolean,
    write_float,
    write_integer,
    write_null,
    write_text,
)

REFUSED, NULL, BOOLEAN, INTEGER, FLOAT, TEXT, BYTES, ARRAY, MAP = range(9)


class MsgpackProgram(NamedTuple):
    """A hash table of names, and the order in which those of the record before came."""

    buckets_H: npt.NDArray[np.int64]  # a name, or -1; open addressing by name_hash
    order_P: npt.NDArray[np.int64]
    left_G: npt.NDArray[np.int64]  # of an object that is being read: the members that are left of the one around it


def build_program(parser: BinaryParser) -> MsgpackProgram:
    """The program of a parser's fields."""
    fields = parser.fields
    sizes = fields.name_length_X.tolist()
    names = [words.tobytes()[:size] for words, size in zip(fields.name_words_XW, sizes, strict=True)]
    buckets_H = build_hash_table(names, fields.object_X.tolist(), are_quoted=False)
    return MsgpackProgram(buckets_H, np.full(512, -1, np.int64), np.zeros(len(fields.parent_G), np.int64))


@inlined
def big_endian(buffer: Any, at: Any, num_bytes: Any) -> Any:
    """The uint64 of up to 8 bytes."""
    word = np.uint64(0)
    for i in range(num_bytes):
        word = word << np.uint64(8) | np.uint64(buffer[np.uint64(at + i)])
    return word


@compiled
def read_head(buffer: Any, at: Any, end: Any) -> Any:
    """(position after it, kind, integer or number of bytes or items, float) of the value that begins at `at`.

    The position of a text or of bytes is that of the first of them; all of them are within `end`.
    """
    byte = np.int64(buffer[np.uint64(at)]) if at < end else np.int64(0xC1)
    at += 1
    integer, number = np.int64(0), 0.0
    if byte < 0x80:
        return at, INTEGER, byte, number
    if byte < 0x90:
        return at, MAP, byte & 15, number
    if byte < 0xA0:
        return at, ARRAY, byte & 15, number
    if byte >= 0xE0:
        return at, INTEGER, byte - 256, number
    kind: Any = REFUSED
    size: Any = 0
    if byte < 0xC0:
        kind, integer = TEXT, byte & 31
    elif byte == 0xC0:
        return at, NULL, integer, number
    elif byte == 0xC2 or byte == 0xC3:
        return at, BOOLEAN, byte - 0xC2, number
    elif byte == 0xCA or byte == 0xCB:
        kind, size = FLOAT, 4 if byte == 0xCA else 8
    elif 0xC4 <= byte <= 0xC6:
        kind, size = BYTES, 1 << (byte - 0xC4)
    elif 0xCC <= byte <= 0xD3:
        kind, size = INTEGER, 1 << ((byte - 0xCC) & 3)
    elif 0xD9 <= byte <= 0xDB:
        kind, size = TEXT, 1 << (byte - 0xD9)
    elif byte == 0xDC or byte == 0xDD:
        kind, size = ARRAY, 2 << (byte - 0xDC)
    elif byte == 0xDE or byte == 0xDF:
        kind, size = MAP, 2 << (byte - 0xDE)
    if kind == REFUSED or end - at < size:
        return at, REFUSED, integer, number
    if size > 0:
        word = big_endian(buffer, at, size)
        at += size
        integer = np.int64(word)
        if kind == FLOAT:
            number = float_of(word) if size == 4 else double_of(word)
        elif 0xD0 <= byte <= 0xD2:  # signed ones
            shift = np.int64(64 - 8 * size)
            integer = (integer << shift) >> shift
        elif byte == 0xCF and integer < 0:
            return at, REFUSED, integer, number
    if (kind in (TEXT, BYTES)) and (integer > end - at or (kind == TEXT and not is_utf8(buffer, at, at + integer))):
        return at, REFUSED, integer, number
    return at, kind, integer, number


@inlined
def write_value(
    buffer: Any,
    at: Any,
    kind: Any,
    integer: Any,
    number: Any,
    fields: Any,
    field: Any,
    n: Any,
    out: Any,
    work: Any,
    latest: Any,
) -> Any:
    """Write a value that is neither an array nor a map, and whose head was read."""
    if kind == INTEGER:
        return write_integer(fields, field, integer, n, out, work, latest)
    if kind == BOOLEAN:
        return write_boolean(fields, field, integer, n, out, work, latest)
    if kind == FLOAT:
        return write_float(fields, field, number, n, out, work, latest)
    if kind == TEXT:
        return write_text(buffer, at, integer, fields, field, n, out, work)
    return False


@inlined
def skip_items(buffer: Any, at: Any, end: Any, kind: Any, count: Any, stack: Any) -> Any:
    """The position after the items of an array or a map; -1 where they are left to the reference."""
    depth = 0
    stack.node_D[0], stack.left_D[0] = kind, count
    while True:
        if stack.left_D[depth] == 0:
            if depth == 0:
                return at
            depth -= 1
            continue
        stack.left_D[depth] -= 1
        if stack.node_D[depth] == MAP:
            at, kind, integer, _ = read_head(buffer, at, end)
            if kind != TEXT:
                return np.int64(-1)
            at += integer
        at, kind, integer, _ = read_head(buffer, at, end)
        if kind == REFUSED:
            return np.int64(-1)
        if kind in (TEXT, BYTES):
            at += integer
        elif kind in (ARRAY, MAP):
            depth += 1
            if depth == len(stack.node_D):
                return np.int64(-1)
            stack.node_D[depth], stack.left_D[depth] = kind, integer


@inlined
def read_msgpack(
    buffer: Any,
    at: Any,
    end: Any,
    fields: Any,
    has_paths: Any,
    program: Any,
    n: Any,
    out: Any,
    work: Any,
    stack: Any,
    latest: Any,
) -> Any:
    """Write the map at `at` to row n; return False to leave it to the reference. `has_paths`: as of the kernel."""
    at, kind, num_left, _ = read_head(buffer, at, end)
    if kind != MAP:
        return False
    record = work.counts[NUM_RECORDS]
    place, inside = 0, np.int64(0)
    while True:
        while has_paths and num_left == 0 and inside != 0:
            num_left = program.left_G[inside]
            inside = fields.parent_G[inside]
        if num_left == 0:
            return at == end and end_row(fields, n, out)
        num_left -= 1
        at, kind, length, _ = read_head(buffer, at, end)
        if kind != TEXT:
            return False
        slot = min(place, len(program.order_P) - 1)
        place += 1
        name = program.order_P[slot]
        is_elsewhere = name < 0 or (has_paths and fields.object_X[name] != inside)
        if is_elsewhere or not is_name(buffer, at, length, fields, name):
            name = find_name(buffer, at, at + length, fields, program.buckets_H, inside)
            program.order_P[slot] = name
        at, kind, integer, number = read_head(buffer, at + length, end)
        if kind == REFUSED:
            return False
        if name < 0:
            if kind in (TEXT, BYTES):
                at += integer
            elif kind in (ARRAY, MAP):
                at = skip_items(buffer, at, end, kind, integer, stack)
                if at < 0:
                    return False
            continue
        field = fields.field_X[name] if has_paths else name
        seen = name if field < 0 else field
        if work.last_record_X[seen] == record:
            return False
        work.last_record_X[seen] = record
        if has_paths and field < 0:
            if kind == MAP:
                inside = fields.opened_X[name]
                program.left_G[inside] = num_left
                num_left = integer
            elif kind != NULL:
                return False
        elif kind == NULL:
            write_null(fields, field, n, out)
        elif fields.role_J[field] == LIST:
            if kind != ARRAY:
                return False
            for _ in range(integer):
                at, kind, element, number = read_head(buffer, at, end)
                if kind == NULL:
                    continue
                if not write_value(buffer, at, kind, element, number, fields, field, n, out, work, latest):
                    return False
                if kind == TEXT:
                    at += element
        else:
            if not write_value(buffer, at, kind, integer, number, fields, field, n, out, work, latest):
                return False
            if kind == TEXT:
                at += integer


def compile_kernel(fingerprint: str, has_paths: bool) -> Callable[..., int]:
    """Compile the loop; the fingerprint is part of the key of Numba's cache."""

    def parse_msgpack(
        first: Any,
        messages: Any,
        fields: Any,
        program: Any,
        symbols: Any,
        is_chosen_N: Any,
        header_bytes: Any,
        out: Any,
        work: Any,
        stack: Any,
        longest: Any,
        now_ms: Any,
        future_ms: Any,
    ) -> Any:
        """Read records from `first` on; stop early where the workspace has no room. Return the next."""
        fingerprint  # noqa: B018  a free variable is part of the cache's key
        for n in range(first, len(messages.start_N)):
            if not is_chosen_N[n]:
                continue
            num_elements, num_strings = work.counts[NUM_ELEMENTS], work.counts[NUM_STRINGS]
            is_read, latest = begin_record(n, messages, fields, out, work, longest, now_ms, future_ms)
            if latest == -1:
                return n
            if not is_read:
                continue
            start = messages.start_N[n] + header_bytes
            end = messages.start_N[n] + messages.length_N[n]
            buffer = messages.buffer
            if read_msgpack(buffer, start, end, fields, has_paths, program, n, out, work, stack, latest):
                out.unparsed_N[n] = False
            else:
                undo_record(num_elements, num_strings, work)
        return len(messages.start_N)

    compiled_loop: Callable[..., int] = njit(cache=True, **OPTIONS)(named_specialization(parse_msgpack, has_paths))
    return compiled_loop


@cache
def msgpack_kernel(has_paths: bool) -> Callable[..., int]:
    """The loop; compiled, or loaded from Numba's cache, at its first call. `has_paths`: as of JSON's."""
    return compile_kernel(fingerprint_of(__file__), has_paths)
