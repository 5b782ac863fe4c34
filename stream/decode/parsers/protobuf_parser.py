"""The fast path of Protobuf: a compiled loop walks a message's bytes by its type, and writes its fields into columns.

A type is a program: message nodes with entries for their fields. Nodes in which fields of the samples lie are one for
each path; all other types are one node each, walked only to see that their bytes are valid. Left to the reference: a
member of a oneof, a map, a wrapper or a message of lists that the schema of the samples names, groups, and whatever
damaged bytes do.
"""

# T message nodes, E entries, X defaults, Y numbers of enums
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.decode.parsers.binary_parser import BinaryParser, begin_record, fingerprint_of, undo_record
from springtide.stream.decode.parsers.byte_ops import (
    OPTIONS,
    double_of,
    float_of,
    inlined,
    partial_word,
    read_varint,
    zigzag,
)
from springtide.stream.decode.parsers.field_table import LIST, TIME
from springtide.stream.decode.parsers.json_values import NUM_ELEMENTS, NUM_RECORDS, NUM_STRINGS
from springtide.stream.decode.parsers.typed_values import (
    end_row,
    is_utf8,
    write_float,
    write_integer,
    write_symbol,
    write_text,
)
from springtide_client.schema import field_paths

(INT32, INT64, UINT32, UINT64, SINT32, SINT64, BOOL, ENUM, FIXED32, SFIXED32, FIXED64, SFIXED64, FLOAT, DOUBLE) = range(
    14
)
(STRING, BYTES, MESSAGE, MOMENT, LEFT) = range(14, 19)
# by the numbers of google.protobuf.FieldDescriptorProto.Type
KINDS = {
    1: DOUBLE,
    2: FLOAT,
    3: INT64,
    4: UINT64,
    5: INT32,
    6: FIXED64,
    7: FIXED32,
    8: BOOL,
    9: STRING,
    11: MESSAGE,
    12: BYTES,
    13: UINT32,
    14: ENUM,
    15: SFIXED32,
    16: SFIXED64,
    17: SINT32,
    18: SINT64,
}
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
WIRES = {FIXED32: FOUR_BYTES, SFIXED32: FOUR_BYTES, FLOAT: FOUR_BYTES, FIXED64: EIGHT_BYTES, SFIXED64: EIGHT_BYTES}
WIRES |= {DOUBLE: EIGHT_BYTES, STRING: LENGTH, BYTES: LENGTH, MESSAGE: LENGTH, MOMENT: LENGTH}
MOMENTS = ("google.protobuf.Timestamp", "google.protobuf.Duration")
MAX_NODES = 2000
LOW_32 = np.uint64(0xFFFF_FFFF)
MILLION = 1_000_000


class ProtobufProgram(NamedTuple):
    """A message type as arrays. Node 0 is the message."""

    first_T: npt.NDArray[np.int64]  # of its entries
    count_T: npt.NDArray[np.int64]
    entered_T: npt.NDArray[np.int64]  # the record in which the message last was
    number_E: npt.NDArray[np.int64]
    kind_E: npt.NDArray[np.int64]
    wire_E: npt.NDArray[np.int64]
    is_list_E: npt.NDArray[np.int64]
    field_E: npt.NDArray[np.int64]  # of the samples' schema, or -1
    child_E: npt.NDArray[np.int64]  # the node of a message, the first number of an enum
    count_E: npt.NDArray[np.int64]  # of the enum's numbers
    is_closed_E: npt.NDArray[np.int64]  # the enum has no other numbers
    default_node_X: npt.NDArray[np.int64]
    default_kind_X: npt.NDArray[np.int64]  # INT64, DOUBLE, STRING ("") or ENUM
    default_field_X: npt.NDArray[np.int64]
    default_integer_X: npt.NDArray[np.int64]  # of an enum: its symbol
    default_float_X: npt.NDArray[np.float64]
    number_Y: npt.NDArray[np.int64]
    symbol_Y: npt.NDArray[np.int64]


def build_program(descriptor: Any, parser: BinaryParser) -> ProtobufProgram | None:
    """The program of a message type; None where it must be left to the reference."""
    builder = _Builder(parser)
    try:
        builder.add_message(descriptor, "")
    except _LeftError:
        return None
    nodes = np.array(builder.nodes, np.int64).T.copy()
    entries = np.array(builder.entries or [[0] * 8], np.int64).T.copy()
    defaults = builder.defaults or [(-1, INT64, -1, 0, 0.0)]
    numbers = np.array(builder.numbers_of_enums or [(0, 0)], np.int64).T.copy()
    arrays = [
        *nodes,
        np.zeros(len(builder.nodes), np.int64),
        *entries,
        *(np.array([each[i] for each in defaults], np.int64) for i in range(4)),
        np.array([each[4] for each in defaults], np.float64),
        *numbers,
    ]
    return ProtobufProgram._make(arrays)


class _LeftError(Exception):
    """The type must be left to the reference."""


class _Builder:
    """Adds the nodes of a type one by one."""

    def __init__(self, parser: BinaryParser) -> None:
        self.parser, self.paths = parser, field_paths(parser.names)
        self.field_numbers = {name: number for number, name in enumerate(parser.names)}
        self.nodes: list[list[int]] = []
        self.entries: list[list[int]] = []
        self.defaults: list[tuple[int, int, int, int, float]] = []
        self.numbers_of_enums: list[tuple[int, int]] = []
        self._unused: dict[str, int] = {}
        self._enums: dict[str, int] = {}

    def add_message(self, descriptor: Any, path: str | None) -> int:
        """Add a message at a path of fields, None where no field of the samples lies in it; returns its node."""
        if path is None and descriptor.full_name in self._unused:
            return self._unused[descriptor.full_name]
        node = len(self.nodes)
        if node > MAX_NODES:
            raise _LeftError
        self.nodes.append([0, 0])
        if path is None:
            self._unused[descriptor.full_name] = node
        entries, defaults = [], []
        for field in descriptor.fields:
            if field.is_required or field.type not in KINDS:
                raise _LeftError
            entry, default = self._entry(field, path)
            entries.append(entry)
            defaults += [(node, *each) for each in default]
        self.nodes[node] = [len(self.entries), len(entries)]
        self.entries += entries
        self.defaults += defaults
        return node

    def _entry(self, field: Any, path: str | None) -> tuple[list[int], list[tuple[int, int, int, float]]]:
        kind, child, count, is_closed = KINDS[field.type], 0, 0, 0
        inner = None if path is None else f"{path}.{field.name}" if path else field.name
        number, has_deeper = -1, False
        if inner is not None:
            number = self.field_numbers.get(inner, -1) if "." not in inner or inner in self.paths else -1
            has_deeper = any(name.startswith(f"{inner}.") for name in self.paths)
        is_list = bool(field.is_repeated)
        is_fit = (self.parser.fields.role_J[number] == LIST) == is_list
        oneof = field.containing_oneof
        is_no_time = kind == BOOL and self.parser.fields.role_J[number] == TIME
        is_member = oneof is not None and len(oneof.fields) > 1
        is_left = number >= 0 and (not is_fit or kind == BYTES or is_no_time or is_member)
        if kind == MESSAGE:
            name = field.message_type.full_name
            if number >= 0 and name in MOMENTS and is_fit and not is_left:
                kind = MOMENT
            elif number >= 0 or (has_deeper and (is_list or name.startswith("google.protobuf.") or oneof is not None)):
                is_left = True
            child = self.add_message(field.message_type, inner if has_deeper and not is_left else None)
        elif kind == ENUM:
            child, count, is_closed = (
                self._enum(field.enum_type),
                len(field.enum_type.values),
                field.enum_type.is_closed,
            )
        defaults = []
        if number >= 0 and not is_list and not is_left and kind not in (MESSAGE, MOMENT):
            defaults = self._default(field, kind, number, child, count)
        kind = LEFT if is_left else kind
        wire = WIRES.get(kind, VARINT)
        return [field.number, kind, wire, int(is_list), number, child, count, int(is_closed)], defaults

    def _default(self, field: Any, kind: int, number: int, child: int, count: int) -> list[tuple[int, int, int, float]]:
        """The value that a field has when it is left out, if it is not missing then."""
        if field.has_presence and not field.has_default_value:
            return []
        value = field.default_value
        if kind == ENUM:
            symbols = [symbol for at, symbol in self.numbers_of_enums[child : child + count] if at == value]
            return [(ENUM, number, symbols[0], 0.0)]
        if kind == STRING:
            if value:
                raise _LeftError  # a text of proto2
            return [(STRING, number, 0, 0.0)]
        if isinstance(value, float):
            return [(DOUBLE, number, 0, value)]
        if not -(2**63) <= int(value) < 2**63:
            raise _LeftError
        return [(INT64, number, int(value), 0.0)]

    def _enum(self, enum: Any) -> int:
        if enum.full_name not in self._enums:
            self._enums[enum.full_name] = len(self.numbers_of_enums)
            # of two symbols of one number the library gives the one that it finds by the number
            texts = [enum.values_by_number[value.number].name for value in enum.values]
            first = self.parser.add_symbols(texts)
            self.numbers_of_enums += [(value.number, first + i) for i, value in enumerate(enum.values)]
        return self._enums[enum.full_name]


@inlined
def write_defaults(
    record: Any, buffer: Any, fields: Any, program: Any, symbols: Any, n: Any, out: Any, work: Any, latest: Any
) -> Any:
    """Give the fields that were left out of the messages of this record the values that they have then."""
    for x in range(len(program.default_node_X)):
        node, field = program.default_node_X[x], program.default_field_X[x]
        if node < 0 or program.entered_T[node] != record or work.last_record_X[field] == record:
            continue
        kind = program.default_kind_X[x]
        if kind == INT64:
            is_good = write_integer(fields, field, program.default_integer_X[x], n, out, work, latest)
        elif kind == DOUBLE:
            is_good = write_float(fields, field, program.default_float_X[x], n, out, work, latest)
        elif kind == STRING:
            is_good = write_text(buffer, np.int64(0), np.int64(0), fields, field, n, out, work)
        else:
            is_good = write_symbol(program.default_integer_X[x], symbols, fields, field, n, out, work)
        if not is_good:
            return False
    return True


@inlined
def skip_field(buffer: Any, at: Any, limit: Any, wire: Any) -> Any:
    """The position after a field that the type does not have; -1 if it is malformed or a group."""
    if wire == VARINT:
        at, _ = read_varint(buffer, at, limit)
        return at
    if wire == EIGHT_BYTES:
        at += 8
    elif wire == FOUR_BYTES:
        at += 4
    elif wire == LENGTH:
        at, word = read_varint(buffer, at, limit)
        if at < 0 or word > np.uint64(limit - at):
            return np.int64(-1)
        at += np.int64(word)
    else:
        return np.int64(-1)
    return at if at <= limit else np.int64(-1)


@inlined
def read_moment(buffer: Any, at: Any, stop: Any) -> Any:
    """(whether it is one, milliseconds) of a Timestamp or Duration."""
    seconds, nanos = np.int64(0), np.int64(0)
    while at < stop:
        tag = buffer[np.uint64(at)]
        at, word = read_varint(buffer, at + 1, stop)
        if at < 0:
            return False, seconds
        if tag == 8:
            seconds = np.int64(word)
        elif tag == 16:
            nanos = np.int64(np.int32(word & LOW_32))
        else:
            return False, seconds
    return abs(seconds) < 1 << 50, 1000 * seconds + nanos // MILLION


@inlined
def read_protobuf(
    buffer: Any,
    at: Any,
    end: Any,
    fields: Any,
    program: Any,
    symbols: Any,
    n: Any,
    out: Any,
    work: Any,
    stack: Any,
    latest: Any,
) -> Any:
    """Write the message at `at` to row n; return False to leave it to the reference."""
    depth = 0
    stack.node_D[0], stack.next_D[0], stack.left_D[0] = 0, 0, end
    record = work.counts[NUM_RECORDS]
    program.entered_T[0] = record
    while True:
        while at == stack.left_D[depth] and depth > 0:
            depth -= 1
        limit = stack.left_D[depth]
        if at == limit:
            break
        # 1. which field it is: most writers send them in the order of their numbers
        at, tag = read_varint(buffer, at, limit)
        if at < 0 or tag > LOW_32 or tag < np.uint64(8):
            return False
        number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        node = stack.node_D[depth]
        first, count, place, entry = program.first_T[node], program.count_T[node], stack.next_D[depth], np.int64(-1)
        for _ in range(count):
            if program.number_E[first + place] == number:
                entry = first + place
                stack.next_D[depth] = place
                break
            place = place + 1 if place + 1 < count else 0
        if entry < 0:
            at = skip_field(buffer, at, limit, wire)
            if at < 0:
                return False
            continue
        kind, field = program.kind_E[entry], program.field_E[entry]
        if kind == LEFT:
            return False
        if field >= 0 and program.is_list_E[entry] == 0:
            # of a field that comes twice the last counts: its string alone is that of an id
            if work.last_record_X[field] == record:
                return False
            work.last_record_X[field] = record
        # 2. where its value ends, if it says so
        stop = at
        is_packed = wire == LENGTH and program.wire_E[entry] != LENGTH and program.is_list_E[entry] == 1
        if not is_packed and wire != program.wire_E[entry]:
            return False
        if wire == LENGTH:
            at, word = read_varint(buffer, at, limit)
            if at < 0 or word > np.uint64(limit - at):
                return False
            stop = at + np.int64(word)
            if kind == MESSAGE:
                depth += 1
                if depth == len(stack.node_D):
                    return False
                child = program.child_E[entry]
                stack.node_D[depth], stack.next_D[depth], stack.left_D[depth] = child, 0, stop
                program.entered_T[child] = record
                continue
            if kind == STRING:
                if not is_utf8(buffer, at, stop):
                    return False
                if field >= 0 and not write_text(buffer, at, stop - at, fields, field, n, out, work):
                    return False
                at = stop
                continue
            if kind == BYTES:
                at = stop
                continue
            if kind == MOMENT:
                is_good, moment = read_moment(buffer, at, stop)
                if not is_good or not write_integer(fields, field, moment, n, out, work, latest):
                    return False
                at = stop
                continue
            limit = stop
        # 3. one number, or as many as are packed
        is_first = not is_packed
        while is_first or at < stop:
            is_first = False
            integer, number_float, is_float = np.int64(0), 0.0, False
            if program.wire_E[entry] == VARINT:
                at, word = read_varint(buffer, at, limit)
                if at < 0:
                    return False
                if kind in (INT32, ENUM):
                    integer = np.int64(np.int32(word & LOW_32))
                elif kind == UINT32:
                    integer = np.int64(word & LOW_32)
                elif kind == SINT32:
                    integer = zigzag(word & LOW_32)
                elif kind == SINT64:
                    integer = zigzag(word)
                elif kind == BOOL:
                    integer = np.int64(1 if word != np.uint64(0) else 0)
                else:
                    integer = np.int64(word)
                    if kind == UINT64 and integer < 0:
                        return False
            elif program.wire_E[entry] == FOUR_BYTES:
                if limit - at < 4:
                    return False
                word = partial_word(buffer, at, 4)
                at += 4
                if kind == FLOAT:
                    number_float, is_float = float_of(word), True
                else:
                    integer = np.int64(word) if kind == FIXED32 else np.int64(np.int32(word))
            else:
                if limit - at < 8:
                    return False
                word = partial_word(buffer, at, 8)
                at += 8
                if kind == DOUBLE:
                    number_float, is_float = double_of(word), True
                else:
                    integer = np.int64(word)
                    if kind == FIXED64 and integer < 0:
                        return False
            symbol = np.int64(-1)
            if kind == ENUM:
                for y in range(program.child_E[entry], program.child_E[entry] + program.count_E[entry]):
                    if program.number_Y[y] == integer:
                        symbol = program.symbol_Y[y]
                        break
                if symbol < 0 and program.is_closed_E[entry] == 1:
                    return False
            if field < 0:
                continue
            if is_float:
                is_good = write_float(fields, field, number_float, n, out, work, latest)
            elif symbol >= 0:
                is_good = write_symbol(symbol, symbols, fields, field, n, out, work)
            else:
                is_good = write_integer(fields, field, integer, n, out, work, latest)
            if not is_good:
                return False
    if not write_defaults(record, buffer, fields, program, symbols, n, out, work, latest):
        return False
    return end_row(fields, n, out)


def compile_kernel(fingerprint: str) -> Callable[..., int]:
    """Compile the loop; the fingerprint is part of the key of Numba's cache."""

    @njit(cache=True, **OPTIONS)
    def parse_protobuf(
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
        """Read the chosen records from `first` on; stop early where the workspace has no room. Return the next."""
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
            start = messages.start_N[n]
            if read_protobuf(
                messages.buffer,
                start + header_bytes,
                start + messages.length_N[n],
                fields,
                program,
                symbols,
                n,
                out,
                work,
                stack,
                latest,
            ):
                out.unparsed_N[n] = False
            else:
                undo_record(num_elements, num_strings, work)
        return len(messages.start_N)

    compiled: Callable[..., int] = parse_protobuf
    return compiled


@lru_cache(1)
def protobuf_kernel() -> Callable[..., int]:
    """The loop; compiled, or loaded from Numba's cache, at its first call."""
    return compile_kernel(fingerprint_of(__file__))
