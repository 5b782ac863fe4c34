"""The weights of an ONNX file replaced by name, in place: a walk over its protobuf wire format, without its library.

Formats: https://protobuf.dev/programming-guides/encoding and onnx.proto. Knows only what export_onnx makes.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from springtide_client.errors import LogError
from springtide_client.format.tensors import Array

# field numbers: ModelProto.graph, GraphProto.initializer, TensorProto.name and .raw_data
GRAPH, INITIALIZER, NAME, RAW_DATA = 7, 5, 8, 9
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message: its number, and where its value stands."""

    number: int
    start: int
    end: int


def with_weights(content: bytes, weights: Mapping[str, Array]) -> bytes:
    """The file with the initializers of these names replaced; those of other names stay.

    LogError where a weight has another size, or the bytes are no ONNX file.
    """
    changed = bytearray(content)
    try:
        for graph in fields_of(content, 0, len(content), GRAPH):
            for tensor in fields_of(content, graph.start, graph.end, INITIALIZER):
                (name,) = fields_of(content, tensor.start, tensor.end, NAME)
                weight = weights.get(content[name.start : name.end].decode())
                if weight is None:
                    continue
                (raw,) = fields_of(content, tensor.start, tensor.end, RAW_DATA)
                if raw.end - raw.start != weight.nbytes:
                    raise ValueError(f"{raw.end - raw.start} bytes of a weight of {weight.nbytes}")
                changed[raw.start : raw.end] = weight.tobytes()
    except (IndexError, ValueError) as error:
        raise LogError(f"the model's ONNX file does not fit its weights: {error}") from None
    return bytes(changed)


def fields_of(content: bytes, start: int, end: int, number: int) -> Iterator[Field]:
    """The fields of one number, of a message between two places."""
    while start < end:
        tag, start = varint(content, start)
        kind = tag & 7
        if kind == VARINT:
            _, stop = varint(content, start)
        elif kind == BYTES:
            length, start = varint(content, start)
            stop = start + length
        elif kind in (FIXED64, FIXED32):
            stop = start + (8 if kind == FIXED64 else 4)
        else:
            raise ValueError(f"wire type {kind}")
        if stop > end:
            raise ValueError("a field ends behind its message")
        if tag >> 3 == number:
            yield Field(number, start, stop)
        start = stop


def varint(content: bytes, start: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = content[start]
        value, shift, start = value | (byte & 127) << shift, shift + 7, start + 1
        if byte < 128:
            return value, start
