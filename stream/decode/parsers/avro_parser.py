"""The fast path of Avro: a compiled loop walks a record's bytes by its schema, and writes its fields into columns.

A schema is a program: nodes whose children are in one array. It is walked without recursion; what it cannot decide is
left to the reference: decimals of more than 18 digits, and whatever damaged bytes do.
"""

# A nodes, X children of all nodes
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.kernels.njit import njit
from springtide.stream.decode.parsers.avro_resolution import Resolution, UnresolvedError
from springtide.stream.decode.parsers.binary_parser import (
    BinaryParser,
    begin_record,
    fingerprint_of,
    undo_record,
)
from springtide.stream.decode.parsers.byte_ops import (
    OPTIONS,
    compiled,
    double_of,
    float_of,
    inlined,
    partial_word,
    read_varint,
    zigzag,
)
from springtide.stream.decode.parsers.field_table import LIST
from springtide.stream.decode.parsers.json_numbers import to_float
from springtide.stream.decode.parsers.json_values import NUM_ELEMENTS, NUM_STRINGS
from springtide.stream.decode.parsers.typed_values import (
    end_row,
    is_utf8,
    write_boolean,
    write_float,
    write_integer,
    write_null,
    write_symbol,
    write_text,
)
from springtide_client.schema import field_paths

if TYPE_CHECKING:
    from springtide.stream.decode.avro import AvroSchema

(NULL, BOOLEAN, INTEGER, FLOAT, DOUBLE, BYTES, STRING, FIXED, ENUM, UNION, RECORD, ARRAY, MAP, LEFT, DECIMAL, UUID) = (
    range(16)
)
PRIMITIVES = {
    "null": NULL,
    "boolean": BOOLEAN,
    "int": INTEGER,
    "long": INTEGER,
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BYTES,
    "string": STRING,
}
# of times: (a factor to milliseconds, a divisor, the values that Python's times have)
DAYS = (-719_162, 2_932_896)
MILLISECONDS = (-62_135_596_800_000, 253_402_300_799_999)
TIMES = {
    "timestamp-millis": (1, 1, *MILLISECONDS),
    "local-timestamp-millis": (1, 1, *MILLISECONDS),
    "timestamp-micros": (1, 1000, MILLISECONDS[0] * 1000, MILLISECONDS[1] * 1000 + 999),
    "local-timestamp-micros": (1, 1000, MILLISECONDS[0] * 1000, MILLISECONDS[1] * 1000 + 999),
    "date": (86_400_000, 1, *DAYS),
    "time-millis": (1, 1, 0, 86_399_999),
    "time-micros": (1, 1000, 0, 86_399_999_999),
}
INT64 = (-(2**63), 2**63 - 1)
MAX_DIGITS = 18  # of a decimal that int64 holds


class AvroProgram(NamedTuple):
    """A schema as arrays. Node 0 is the record; `first_A` and `count_A` are of a node's children, or of its symbols."""

    kind_A: npt.NDArray[np.int64]
    field_A: npt.NDArray[np.int64]  # of the samples' schema, or -1
    first_A: npt.NDArray[np.int64]
    count_A: npt.NDArray[np.int64]  # of a fixed: its bytes; of a decimal in other bytes: 0
    # to milliseconds; the factor of a decimal is how many of its digits follow the point
    factor_A: npt.NDArray[np.int64]
    divisor_A: npt.NDArray[np.int64]
    lowest_A: npt.NDArray[np.int64]
    highest_A: npt.NDArray[np.int64]
    children_X: npt.NDArray[np.int64]


def build_program(writer: "AvroSchema", reader: "AvroSchema | None", parser: BinaryParser) -> AvroProgram | None:
    """The program of a writer's schema, resolved to a reader's; None where it must be left to the reference."""
    builder, schema = _Builder(writer.named, parser), writer.schema
    try:
        if reader is not None:
            schema = Resolution(writer.named, reader.named, parser.names).resolve(schema, reader.schema)
        builder.add(schema, "")
    except (UnresolvedError, KeyError, TypeError, RecursionError):
        return None
    if builder.nodes[0][0] != RECORD or len(builder.nodes) > 10_000:
        return None
    columns = np.array(builder.nodes, np.int64).T.copy()
    return AvroProgram._make([*columns, np.array(builder.children or [0], np.int64)])


class _Builder:
    """Adds the nodes of a schema one by one."""

    def __init__(self, named: Mapping[str, Any], parser: BinaryParser) -> None:
        self.named, self.parser = named, parser
        self.numbers = {name: number for number, name in enumerate(parser.names)}
        self.paths = field_paths(parser.names)
        self.nodes: list[list[int]] = []
        self.children: list[int] = []
        self._unused: dict[str, int] = {}  # named types in which no field of the samples lies

    def add(self, schema: Any, path: str, *, in_list: bool = False) -> int:
        """Add a type, and the types in it, at a path of fields; returns its node."""
        field = self.numbers.get(path, -1)
        role = self.parser.fields.role_J[field] if field >= 0 else -1
        if isinstance(schema, list):
            return self._node(UNION, -1, [self._later(each, path, in_list=in_list) for each in schema])
        document = {"type": schema} if isinstance(schema, str) else schema
        kind = document["type"]
        if isinstance(kind, (list, dict)):
            return self.add(kind, path, in_list=in_list)
        if kind not in PRIMITIVES and kind in self.named:
            document = self.named[kind]
            kind = document["type"]
        if kind in PRIMITIVES:
            # a field that is a list is one of elements, any other one is a single value
            left = field >= 0 and kind != "null" and (role == LIST) != in_list
            return self._primitive(PRIMITIVES[kind], document, field, left)
        if kind == "fixed":
            if document.get("logicalType") == "decimal" and field >= 0:
                return self._decimal(document, field, (role == LIST) != in_list)
            return self._node(LEFT if field >= 0 else FIXED, -1, count=int(document["size"]))
        if kind == "enum":
            if field >= 0 and (role == LIST) != in_list:
                return self._node(LEFT, -1)
            first = self.parser.add_symbols(document["symbols"])
            return self._node(ENUM, field, first=first, count=len(document["symbols"]))
        if kind == "array":
            is_list = field >= 0 and role == LIST and not in_list
            if field >= 0 and not is_list:
                return self._node(LEFT, -1)
            return self._node(
                ARRAY, field, [self._later(document["items"], path if is_list else "\0", in_list=is_list)]
            )
        if field >= 0:
            return self._node(LEFT, -1)
        if kind == "map":
            has_fields = any(name.startswith(f"{path}.") for name in self.numbers) and path != "\0"
            return self._node(LEFT if has_fields else MAP, -1, [self._later(document["values"], "\0")])
        if kind in ("record", "error"):
            return self._record(document, path)
        raise KeyError(kind)

    def _record(self, document: Mapping[str, Any], path: str) -> int:
        is_used = path == "" or (path != "\0" and any(name.startswith(f"{path}.") for name in self.numbers))
        name = document["name"]
        if not is_used and name in self._unused:
            return self._unused[name]
        node = self._node(RECORD, -1)
        if not is_used:
            self._unused[name] = node
        places = []
        for field in document["fields"]:
            inner = f"{path}.{field['name']}" if path else field["name"]
            # a field inside of another one of the samples' schema has no path: see springtide_client.schema.field_paths
            is_path = is_used and ("." not in inner or inner in self.paths)
            has_deeper = is_used and any(each.startswith(f"{inner}.") for each in self.paths)
            places.append(self.add(field["type"], inner if is_path or has_deeper else "\0"))
        self.nodes[node][2:4] = [len(self.children), len(places)]
        self.children += places
        return node

    def _later(self, schema: Any, path: str, *, in_list: bool = False) -> tuple[Any, str, bool]:
        return schema, path, in_list

    def _primitive(self, kind: int, document: Mapping[str, Any], field: int, left: bool) -> int:
        logical = document.get("logicalType")
        if logical in TIMES and kind == INTEGER:
            return self._node(kind, -1 if left else field, times=TIMES[logical], left=left)
        if logical == "decimal" and kind == BYTES and field >= 0:
            return self._decimal(document, field, left)
        if logical == "uuid" and kind == STRING and field >= 0:
            return self._node(UUID, field, left=left)
        if logical is not None and field >= 0:
            return self._node(LEFT, -1)
        if kind == BYTES and field >= 0:
            return self._node(LEFT, -1)
        return self._node(kind, field, left=left)

    def _decimal(self, document: Mapping[str, Any], field: int, left: bool) -> int:
        digits, scale = int(document["precision"]), int(document.get("scale", 0))
        if not 0 <= scale <= 22 or digits < 1:
            return self._node(LEFT, -1)
        highest = 10 ** min(digits, MAX_DIGITS) - 1
        times = (scale, 1, -highest, highest)
        return self._node(DECIMAL, field, count=int(document.get("size", 0)), times=times, left=left)

    def _node(
        self,
        kind: int,
        field: int,
        children: list[tuple[Any, str, bool]] | None = None,
        *,
        first: int = 0,
        count: int = 0,
        times: tuple[int, int, int, int] = (1, 1, *INT64),
        left: bool = False,
    ) -> int:
        node = len(self.nodes)
        self.nodes.append([LEFT if left else kind, field, first, count, *times])
        if children is not None:
            places = [self.add(schema, path, in_list=in_list) for schema, path, in_list in children]
            self.nodes[node][2:4] = [len(self.children), len(places)]
            self.children += places
        return node


@compiled
def big_endian_integer(buffer: Any, at: Any, size: Any) -> Any:
    """(whether int64 holds it, the signed number that these bytes are)."""
    number = np.int64(-1 if buffer[np.uint64(at)] > 127 else 0)
    for index in range(size):
        if number > np.int64(1) << 54 or number < -(np.int64(1) << 54):
            return False, np.int64(0)
        number = number << 8 | np.int64(buffer[np.uint64(at + index)])
    return True, number


@compiled
def is_plain_uuid(buffer: Any, at: Any) -> Any:
    """Return True if the 36 bytes at `at` are a UUID as Python writes it."""
    for index in range(36):
        byte = buffer[np.uint64(at + index)]
        if index in (8, 13, 18, 23):
            if byte != 45:
                return False
        elif not (48 <= byte <= 57 or 97 <= byte <= 102):
            return False
    return True


@inlined
def read_avro(
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
    """Write the record at `at` to row n; return False to leave it to the reference."""
    depth = 0
    stack.node_D[0], stack.next_D[0] = 0, 0
    while True:
        # 1. which node is next
        outer = stack.node_D[depth]
        kind = program.kind_A[outer]
        if kind == RECORD:
            place = stack.next_D[depth]
            if place == program.count_A[outer]:
                if depth == 0:
                    break
                depth -= 1
                continue
            stack.next_D[depth] = place + 1
            node = program.children_X[program.first_A[outer] + place]
        else:
            if stack.left_D[depth] == 0:
                at, word = read_varint(buffer, at, end)
                num_items = zigzag(word)
                if at >= 0 and num_items < 0:
                    num_items = -num_items
                    at, word = read_varint(buffer, at, end)
                if at < 0 or num_items < 0 or num_items > end - at:
                    return False
                if num_items == 0:
                    depth -= 1
                    continue
                stack.left_D[depth] = num_items
            stack.left_D[depth] -= 1
            node = program.children_X[program.first_A[outer]]
            if kind == MAP:
                at, word = read_varint(buffer, at, end)
                length = zigzag(word)
                if at < 0 or length < 0 or length > end - at or not is_utf8(buffer, at, at + length):
                    return False
                at += length
        # 2. its value
        kind = program.kind_A[node]
        while kind == UNION:
            at, word = read_varint(buffer, at, end)
            branch = zigzag(word)
            if at < 0 or branch < 0 or branch >= program.count_A[node]:
                return False
            node = program.children_X[program.first_A[node] + branch]
            kind = program.kind_A[node]
        field = program.field_A[node]
        if kind == INTEGER:
            at, word = read_varint(buffer, at, end)
            number = zigzag(word)
            if at < 0 or number < program.lowest_A[node] or number > program.highest_A[node]:
                return False
            if field >= 0:
                number = number * program.factor_A[node] // program.divisor_A[node]
                if not write_integer(fields, field, number, n, out, work, latest):
                    return False
        elif kind in (STRING, BYTES):
            at, word = read_varint(buffer, at, end)
            length = zigzag(word)
            if at < 0 or length < 0 or length > end - at:
                return False
            if kind == STRING:
                if not is_utf8(buffer, at, at + length):
                    return False
                if field >= 0 and not write_text(buffer, at, length, fields, field, n, out, work):
                    return False
            at += length
        elif kind == NULL:
            pass
        elif kind == FLOAT:
            if end - at < 4:
                return False
            if field >= 0 and not write_float(
                fields, field, float_of(partial_word(buffer, at, 4)), n, out, work, latest
            ):
                return False
            at += 4
        elif kind == DOUBLE:
            if end - at < 8:
                return False
            if field >= 0 and not write_float(
                fields, field, double_of(partial_word(buffer, at, 8)), n, out, work, latest
            ):
                return False
            at += 8
        elif kind == ENUM:
            at, word = read_varint(buffer, at, end)
            symbol = zigzag(word)
            if at < 0 or symbol < 0 or symbol >= program.count_A[node]:
                return False
            if field >= 0 and not write_symbol(program.first_A[node] + symbol, symbols, fields, field, n, out, work):
                return False
        elif kind == BOOLEAN:
            if at >= end or buffer[np.uint64(at)] > 1:
                return False
            if field >= 0 and not write_boolean(fields, field, np.int64(buffer[np.uint64(at)]), n, out, work, latest):
                return False
            at += 1
        elif kind == DECIMAL:
            size = program.count_A[node]
            if size == 0:
                at, word = read_varint(buffer, at, end)
                size = zigzag(word)
            if at < 0 or size < 1 or size > end - at:
                return False
            known, number = big_endian_integer(buffer, at, size)
            if not known or number < program.lowest_A[node] or number > program.highest_A[node]:
                return False
            if program.factor_A[node] == 0:
                if not write_integer(fields, field, number, n, out, work, latest):
                    return False
            else:
                known, value = to_float(number < 0, np.uint64(abs(number)), -program.factor_A[node])
                if not known or not write_float(fields, field, value, n, out, work, latest):
                    return False
            at += size
        elif kind == UUID:
            at, word = read_varint(buffer, at, end)
            if at < 0 or zigzag(word) != 36 or end - at < 36 or not is_plain_uuid(buffer, at):
                return False
            if not write_text(buffer, at, np.int64(36), fields, field, n, out, work):
                return False
            at += 36
        elif kind == FIXED:
            at += program.count_A[node]
            if at > end:
                return False
        elif kind == LEFT:
            return False
        else:
            depth += 1
            if depth == len(stack.node_D):
                return False
            stack.node_D[depth], stack.next_D[depth], stack.left_D[depth] = node, 0, 0
            if field >= 0:
                write_null(fields, field, n, out)
    return at == end and end_row(fields, n, out)


def compile_kernel(fingerprint: str) -> Callable[..., int]:
    """Compile the loop; the fingerprint is part of the key of Numba's cache."""

    @njit(cache=True, **OPTIONS)
    def parse_avro(
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
            if read_avro(
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

    compiled_loop: Callable[..., int] = parse_avro
    return compiled_loop


@lru_cache(1)
def avro_kernel() -> Callable[..., int]:
    """The loop; compiled, or loaded from Numba's cache, at its first call."""
    return compile_kernel(fingerprint_of(__file__))
