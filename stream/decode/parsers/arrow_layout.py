"""How the messages of an Arrow IPC stream lie in memory, learned from one that pyarrow has read.

A writer lays out the metadata of all its messages of one schema alike: only numbers differ, which are the lengths, the
counts of nulls and the places of buffers. So a later message whose metadata is the same but for these needs no library:
its numbers are checked, and its values read, by a compiled loop (arrow_parser.py). Whatever is laid out in
another way, or in a way that is not understood here, is left to pyarrow.
"""

# S pieces of a message: the schema, its dictionaries, a batch; A nodes of all pieces; J fields of the samples
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.stream.decode.parsers.field_table import CATEGORICAL, LIST, TIME
from springtide_client.schema import field_paths

# kinds of nodes
NULL, BOOLEAN, INTEGER, UNSIGNED, FLOAT, TEXT, BYTES, FIXED, ITEMS, FIXED_ITEMS, STRUCT, INDEX = range(12)
MAX_PIECES = 64
MARKER = 0xFFFFFFFF
SCHEMA_PIECE, DICTIONARY_PIECE, BATCH_PIECE = 1, 2, 3
TIME_UNITS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 10**6)}


class ArrowProgram(NamedTuple):
    """A layout as arrays. Positions of numbers are those in their piece, 0: it is 0; a node's children follow it."""

    text_B: npt.NDArray[np.uint8]  # the metadata of all pieces
    mask_B: npt.NDArray[np.uint8]  # 0 where they hold a number, else 255
    start_S: npt.NDArray[np.int64]  # of each piece in text_B, and the end of the last
    body_bytes_S: npt.NDArray[np.int64]  # where the length of the body is
    num_rows_S: npt.NDArray[np.int64]
    nodes_S: npt.NDArray[np.int64]
    buffers_S: npt.NDArray[np.int64]
    num_buffers_S: npt.NDArray[np.int64]
    first_node_S: npt.NDArray[np.int64]  # in the arrays of nodes, and the end of the last
    is_used_S: npt.NDArray[np.bool_]  # of a dictionary: a field of the samples is in it
    kind_A: npt.NDArray[np.int64]
    width_A: npt.NDArray[np.int64]  # bytes of a value or an offset; of fixed lists: their elements
    buffer_A: npt.NDArray[np.int64]  # the first of its piece
    parent_A: npt.NDArray[np.int64]  # -1: a column
    field_A: npt.NDArray[np.int64]  # of the samples' schema, or -1
    factor_A: npt.NDArray[np.int64]  # to milliseconds
    divisor_A: npt.NDArray[np.int64]
    dictionary_A: npt.NDArray[np.int64]  # its piece
    is_signed_A: npt.NDArray[np.bool_]
    node_J: npt.NDArray[np.int64]  # -1: missing


class UnknownLayoutError(Exception):
    """The message must be left to pyarrow."""


class Layout(NamedTuple):
    """The metadata of one piece, and where its numbers are; each is checked to be where nothing else is."""

    kind: int
    text: bytes
    body_bytes: int = 0
    dictionary_id: int = 0
    num_rows: int = 0
    nodes: int = 0
    num_nodes: int = 0
    buffers: int = 0
    num_buffers: int = 0

    @property
    def mask(self) -> bytes:
        """255 for each byte that is the same in all messages."""
        mask = bytearray(b"\xff" * len(self.text))
        numbers = (self.body_bytes, 8), (self.num_rows, 8), (self.nodes, 16 * self.num_nodes)
        for at, size in (*numbers, (self.buffers, 16 * self.num_buffers)):
            if at:
                mask[at : at + size] = bytes(size)
        return bytes(mask)


def learn_program(value: bytes, schema: Any, names: Sequence[str], role_J: npt.NDArray[np.int64]) -> ArrowProgram:
    """The program of messages like this one, which pyarrow has read and validated.

    `names`: those of the fields, in the order of `role_J`. Raises UnknownLayoutError.
    """
    try:
        layouts, endianness, dictionary_ids = read_layouts(value)
    except (struct.error, IndexError):
        raise UnknownLayoutError from None
    if endianness != 0 or len(layouts) > MAX_PIECES:
        raise UnknownLayoutError
    return _Builder(layouts, dictionary_ids, names, role_J).build(schema)


class _Builder:
    """Adds the nodes of a schema one by one, first those of its dictionaries."""

    def __init__(
        self, layouts: list[Layout], dictionary_ids: list[int], names: Sequence[str], role_J: npt.NDArray[np.int64]
    ) -> None:
        self.layouts, self.role_J = layouts, role_J
        self.numbers = {name: number for number, name in enumerate(names)}
        self.paths: dict[tuple[str, ...], str] = {}
        self.ids = iter(dictionary_ids)
        self.piece_of_id = {each.dictionary_id: s for s, each in enumerate(layouts) if each.kind == DICTIONARY_PIECE}
        self.types: dict[int, Any] = {}  # of the values of dictionaries, by their pieces
        self.nodes: list[tuple[Any, ...]] = []
        self.num_buffers = 0
        self.used: set[int] = set()
        self.node_J = np.full(len(role_J), -1, np.int64)

    def build(self, schema: Any) -> ArrowProgram:
        import pyarrow as pa

        columns = set(schema.names)
        if len(columns) < len(schema.names):
            raise UnknownLayoutError  # of a name that comes twice the reference takes the last
        self.paths = {path: name for name, path in field_paths(tuple(self.numbers)).items() if name not in columns}
        for field in schema:
            self.add(field.type, (field.name,), -1)
        batch_nodes, self.nodes = self.nodes, []
        num_batch_buffers = self.num_buffers
        first_node = [0, 0]
        num_buffers = [0]
        for piece in range(1, len(self.layouts) - 1):
            kind = self.types.get(piece)
            self.num_buffers = 0
            if kind is None or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UnknownLayoutError
            self.add(kind, None, -1)
            first_node.append(len(self.nodes))
            num_buffers.append(self.num_buffers)
        offset = len(self.nodes)
        for kind, width, buffer, parent, *others in batch_nodes:
            self.nodes.append((kind, width, buffer, parent + offset if parent >= 0 else -1, *others))
        self.node_J[self.node_J >= 0] += offset
        first_node.append(len(self.nodes))
        num_buffers.append(num_batch_buffers)
        for s, layout in enumerate(self.layouts):
            if layout.num_nodes != first_node[s + 1] - first_node[s] or layout.num_buffers != num_buffers[s]:
                raise UnknownLayoutError
        return self._program(first_node)

    def _program(self, first_node: list[int]) -> ArrowProgram:
        text = b"".join(layout.text for layout in self.layouts)
        mask = b"".join(layout.mask for layout in self.layouts)
        if any(len(layout.text) % 8 for layout in self.layouts):
            raise UnknownLayoutError
        numbers = ("body_bytes", "num_rows", "nodes", "buffers", "num_buffers")
        arrays: list[npt.NDArray[Any]] = [
            np.frombuffer(text, np.uint8).copy(),
            np.frombuffer(mask, np.uint8).copy(),
            np.cumsum([0, *(len(layout.text) for layout in self.layouts)]),
            *(np.array([getattr(layout, name) for layout in self.layouts], np.int64) for name in numbers),
            np.array(first_node, np.int64),
            np.array([s in self.used for s in range(len(self.layouts))]),
            *(np.array([node[i] for node in self.nodes], np.int64) for i in range(8)),
            np.array([node[8] for node in self.nodes], np.bool_),
            self.node_J,
        ]
        return ArrowProgram._make(arrays)

    def add(self, kind: Any, path: tuple[str, ...] | None, parent: int) -> None:
        """Add a type and the types in it. `path`: None where no field of the samples can be."""
        import pyarrow as pa

        types, number, field = pa.types, len(self.nodes), self._field(path)
        if types.is_struct(kind):
            inner = [kind.field(i) for i in range(kind.num_fields)]
            if field >= 0 or len({each.name for each in inner}) < len(inner):
                raise UnknownLayoutError
            self._append(STRUCT, buffers=1, parent=parent)
            for each in inner:
                self.add(each.type, None if path is None else (*path, each.name), number)
            return
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not types.is_null(kind):
            if path is not None and any(other[: len(path)] == path != other for other in self.paths):
                raise UnknownLayoutError  # what should hold a field is no struct
            if field >= 0 and is_list != (self.role_J[field] == LIST):
                raise UnknownLayoutError
        if not is_list:
            self._add_values(kind, parent, field)
            return
        if types.is_fixed_size_list(kind):
            self._append(FIXED_ITEMS, kind.list_size, buffers=1, parent=parent, field=field)
        else:
            self._append(ITEMS, 4 if types.is_list(kind) else 8, buffers=2, parent=parent, field=field)
        if field < 0:
            self.add(kind.value_type, None, number)
        else:
            self._add_values(kind.value_type, number, field)
            self.node_J[field] = number

    def _field(self, path: tuple[str, ...] | None) -> int:
        """The number of the field that lies there, or -1."""
        if path is None:
            return -1
        return self.numbers.get(path[0] if len(path) == 1 else self.paths.get(path, ""), -1)

    def _add_values(self, kind: Any, parent: int, field: int) -> None:
        """Add a type that has no others in it."""
        import pyarrow as pa

        types = pa.types
        node: dict[str, Any] = {"parent": parent, "field": field}
        role = self.role_J[field] if field >= 0 else -1
        is_id = role in (-1, CATEGORICAL, LIST)
        if types.is_null(kind):
            self._append(NULL, buffers=0, **node)
        elif types.is_boolean(kind) and role != TIME:
            self._append(BOOLEAN, buffers=2, **node)
        elif types.is_uint64(kind) and role != TIME:
            self._append(UNSIGNED, 8, buffers=2, **node)
        elif types.is_integer(kind) and not types.is_uint64(kind):
            self._append(INTEGER, kind.bit_width // 8, buffers=2, is_signed=types.is_signed_integer(kind), **node)
        elif types.is_floating(kind) and role != TIME and (kind.bit_width > 16 or field < 0):
            self._append(FLOAT, kind.bit_width // 8, buffers=2, **node)
        elif types.is_timestamp(kind) or types.is_duration(kind):
            factor, divisor = TIME_UNITS[kind.unit]
            self._append(INTEGER, 8, buffers=2, factor=factor, divisor=divisor, is_signed=True, **node)
        elif types.is_date32(kind):
            self._append(INTEGER, 4, buffers=2, factor=86_400_000, is_signed=True, **node)
        elif (types.is_string(kind) or types.is_large_string(kind)) and is_id:
            self._append(TEXT, 4 if types.is_string(kind) else 8, buffers=3, **node)
        elif types.is_dictionary(kind) and is_id:
            piece = self.piece_of_id.get(next(self.ids, -1), -1)
            if piece < 0 or self.types.setdefault(piece, kind.value_type) != kind.value_type:
                raise UnknownLayoutError
            self.used |= {piece} if field >= 0 else set()
            width, is_signed = kind.index_type.bit_width // 8, types.is_signed_integer(kind.index_type)
            self._append(INDEX, width, buffers=2, dictionary=piece, is_signed=is_signed, **node)
        elif (types.is_binary(kind) or types.is_large_binary(kind)) and field < 0:
            self._append(BYTES, 4 if types.is_binary(kind) else 8, buffers=3, **node)
        elif types.is_fixed_size_binary(kind) and not types.is_decimal(kind) and field < 0:
            self._append(FIXED, kind.byte_width, buffers=2, **node)
        else:
            raise UnknownLayoutError

    def _append(
        self,
        kind: int,
        width: int = 0,
        *,
        buffers: int,
        parent: int,
        field: int = -1,
        factor: int = 1,
        divisor: int = 1,
        dictionary: int = -1,
        is_signed: bool = False,
    ) -> None:
        if field >= 0:
            self.node_J[field] = len(self.nodes)
        self.nodes.append((kind, width, self.num_buffers, parent, field, factor, divisor, dictionary, is_signed))
        self.num_buffers += buffers


def read_layouts(value: bytes) -> tuple[list[Layout], int, list[int]]:
    """The pieces of a valid message up to its first batch, its endianness, and the ids of its columns' dictionaries.

    0 is little-endian. Raises UnknownLayoutError, struct.error, IndexError.
    """
    layouts: list[Layout] = []
    endianness, dictionary_ids, at = 0, list[int](), 0
    while not layouts or layouts[-1].kind != BATCH_PIECE:
        marker, size = struct.unpack_from("<II", value, at)
        if marker != MARKER or size == 0:
            raise UnknownLayoutError
        table = _Table.root(value[at + 8 : at + 8 + size])
        kind = table.number(1, "B")
        if (kind == SCHEMA_PIECE) != (not layouts):
            raise UnknownLayoutError
        text = value[at : at + 8 + size]
        if kind == SCHEMA_PIECE:
            schema = table.table(2)
            endianness = schema.number(0, "h")
            dictionary_ids = [each for field in schema.tables(1) for each in _dictionary_ids(field)]
            layouts.append(Layout(kind, text))
            at += 8 + size
            continue
        layouts.append(_layout(kind, text, table))
        at += 8 + size + table.number(3, "q")
    return layouts, endianness, dictionary_ids


def _dictionary_ids(field: "_Table") -> Iterator[int]:
    if field.place(4):
        yield field.table(4).number(0, "q")
    for child in field.tables(5):
        yield from _dictionary_ids(child)


def _layout(kind: int, text: bytes, table: "_Table") -> Layout:
    """The layout of a batch or a dictionary. Raises UnknownLayoutError where a number may be something else, too."""
    if kind not in (DICTIONARY_PIECE, BATCH_PIECE):
        raise UnknownLayoutError
    header, dictionary_id = table.table(2), 0
    tables = [table, header]
    if kind == DICTIONARY_PIECE:
        if header.number(2, "B"):
            raise UnknownLayoutError  # it is added to another one
        dictionary_id, batch = header.number(0, "q"), header.table(1)
        tables.append(batch)
    else:
        batch = header
    if batch.place(3) or batch.place(4):
        raise UnknownLayoutError  # compressed, or with buffers beyond those of the types
    places = table.place(3), batch.place(0)
    vectors = [batch.vector(1), batch.vector(2)]
    taken = {(0, 4)}
    for each in tables:
        taken |= {(each.at, each.at + each.size), (each.vtable, each.vtable + each.vtable_size)}
    taken |= {(at - 4, at + 16 * count) for at, count in vectors}
    in_order = sorted(taken)
    if any(one[1] > other[0] for one, other in itertools.pairwise(in_order)):
        raise UnknownLayoutError
    for each, place in ((table, places[0]), (batch, places[1])):
        others = [other for other in each.places if other != place or each.places.count(place) > 1]
        is_apart = not any(place - 4 < other < place + 8 for other in others)
        if place and not (is_apart and each.at + 4 <= place <= each.at + each.size - 8):
            raise UnknownLayoutError
    (nodes, num_nodes), (buffers, num_buffers) = vectors
    body, rows = (8 + place if place else 0 for place in places)
    return Layout(kind, text, body, dictionary_id, rows, 8 + nodes, num_nodes, 8 + buffers, num_buffers)


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.vtable = at - struct.unpack_from("<i", data, at)[0]
        self.vtable_size, self.size = struct.unpack_from("<HH", data, self.vtable)
        offsets = struct.unpack_from(f"<{(self.vtable_size - 4) // 2}H", data, self.vtable + 4)
        self.places = [at + offset if offset else 0 for offset in offsets]

    @staticmethod
    def root(data: bytes) -> "_Table":
        return _Table(data, struct.unpack_from("<I", data)[0])

    def place(self, slot: int) -> int:
        """Where a field is; 0 if it has its default."""
        return self.places[slot] if slot < len(self.places) else 0

    def number(self, slot: int, kind: str) -> int:
        at = self.place(slot)
        return int(struct.unpack_from("<" + kind, self.data, at)[0]) if at else 0

    def table(self, slot: int) -> "_Table":
        at = self.place(slot)
        if not at:
            raise UnknownLayoutError
        return _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0])

    def vector(self, slot: int) -> tuple[int, int]:
        """Where its first element is, and how many it has."""
        at = self.place(slot)
        if not at:
            raise UnknownLayoutError
        at += struct.unpack_from("<I", self.data, at)[0]
        return at + 4, struct.unpack_from("<I", self.data, at)[0]

    def tables(self, slot: int) -> "list[_Table]":
        if not self.place(slot):
            return []
        first, count = self.vector(slot)
        places = range(first, first + 4 * count, 4)
        return [_Table(self.data, at + struct.unpack_from("<I", self.data, at)[0]) for at in places]
