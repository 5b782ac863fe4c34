"""A base's `model.onnx`: exported once by a child process, then carried from base to base with newer weights.

The weights are replaced by name in the file's protobuf bytes, without the onnx library and without torch. Formats:
https://protobuf.dev/programming-guides/encoding and onnx.proto. Handles only files that
springtide.app.models.export.onnx_export writes.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from springtide_client.errors import LogError
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import MODEL, ONNX, Base
from springtide_client.system import parent_death
from springtide_client.wide.parameters import PREFIX

EXPORT_TIMEOUT_SECONDS = 600.0

# field numbers: ModelProto.graph, GraphProto.initializer, TensorProto.name and .raw_data
GRAPH, INITIALIZER, NAME, RAW_DATA = 7, 5, 8, 9
# ModelProto.metadata_props, StringStringEntryProto.key and .value
METADATA, KEY, VALUE = 14, 1, 2
# protobuf wire types
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# what the file's `logits` are, under OUTPUTS in its metadata: with a wide part no prediction, only its offset
OUTPUTS, NET_ONLY, WHOLE_MODEL = "springtide.outputs", "net only", "whole model"
LABEL_SHARES = "springtide.label_shares"  # by which predictions are divided, as JSON: VersionMeta.label_shares

logger = logging.getLogger(__name__)


class OnnxBuilder:
    """Builds the ONNX file of the next base. A program that cannot be exported is logged once and not tried again."""

    def __init__(self) -> None:
        self._failed: set[int] = set()  # CRCs of programs

    def build(self, base: Base, arrays: Arrays, label_shares: Mapping[str, float]) -> bytes | None:
        """Return the file for the base after this one, with the `dense.*` of `arrays`; None if it cannot be built.

        `label_shares`: of the base, for the file's metadata.
        """
        program = base.manifest.files.get(MODEL)
        if program is None or program.crc32 in self._failed:
            return None
        try:
            known = (base.path / ONNX).read_bytes() if base.is_sound(ONNX) else self._export(base.path / MODEL)
            weights = {name.removeprefix("dense."): a for name, a in arrays.items() if name.startswith("dense.")}
            has_wide = any(name.startswith(f"dense.{PREFIX}") for name in (*base.dense, *arrays))
            content = with_property(replace_weights(known, weights), OUTPUTS, NET_ONLY if has_wide else WHOLE_MODEL)
            return with_property(content, LABEL_SHARES, json.dumps(dict(label_shares)))
        except (LogError, OSError, subprocess.TimeoutExpired) as error:
            self._failed.add(program.crc32)
            logger.warning("bases are written without model.onnx", extra={"reason": str(error)})
            return None

    def _export(self, program: Path) -> bytes:
        """Export in a child process, so that the compactor never loads torch."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / ONNX
            launcher = [sys.executable, str(parent_death.__file__), str(os.getpid())]
            command = [
                *launcher,
                sys.executable,
                "-P",
                "-m",
                "springtide.app.models.export.onnx_export",
                str(program),
                str(target),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_SECONDS, check=False)
            if done.returncode != 0:
                raise LogError((done.stderr.strip().splitlines() or ["the export failed without a message"])[-1])
            return target.read_bytes()


class Field(NamedTuple):
    """One field of a protobuf message: its number, and the bytes of its value."""

    number: int
    start: int
    end: int
    whole: int  # where the field begins, with its number


def replace_weights(content: bytes, weights: Mapping[str, Array]) -> bytes:
    """Return the ONNX file with the initializers of these names replaced; others stay.

    LogError if a weight has another size than in the file, or the bytes are not a valid ONNX file.
    """
    changed = bytearray(content)
    try:
        for graph in message_fields(content, 0, len(content), GRAPH):
            for tensor in message_fields(content, graph.start, graph.end, INITIALIZER):
                (name,) = message_fields(content, tensor.start, tensor.end, NAME)
                weight = weights.get(content[name.start : name.end].decode())
                if weight is None:
                    continue
                (raw,) = message_fields(content, tensor.start, tensor.end, RAW_DATA)
                if raw.end - raw.start != weight.nbytes:
                    raise ValueError(f"{raw.end - raw.start} bytes for a weight of {weight.nbytes}")
                changed[raw.start : raw.end] = weight.tobytes()
    except (IndexError, ValueError) as error:
        raise LogError(f"the model's ONNX file does not match its weights: {error}") from None
    return bytes(changed)


def with_property(content: bytes, key: str, value: str) -> bytes:
    """Return the ONNX file with this property among its metadata, in place of another of the same key."""
    kept, start = b"", 0
    for field in message_fields(content, 0, len(content), METADATA):
        (name,) = message_fields(content, field.start, field.end, KEY)
        if content[name.start : name.end] == key.encode():
            kept, start = kept + content[start : field.whole], field.end
    entry = bytes_field(KEY, key.encode()) + bytes_field(VALUE, value.encode())
    return kept + content[start:] + bytes_field(METADATA, entry)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes."""
    length, rest = b"", len(value)
    while rest > 127:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return bytes([number << 3 | BYTES]) + length + bytes([rest]) + value


def message_fields(content: bytes, start: int, end: int, number: int) -> Iterator[Field]:
    """Yield the fields with this number of the message between two offsets; ValueError if it is malformed."""
    while start < end:
        whole = start
        tag, start = read_varint(content, start)
        wire_type = tag & 7
        if wire_type == VARINT:
            _, stop = read_varint(content, start)
        elif wire_type == BYTES:
            length, start = read_varint(content, start)
            stop = start + length
        elif wire_type in (FIXED64, FIXED32):
            stop = start + (8 if wire_type == FIXED64 else 4)
        else:
            raise ValueError(f"wire type {wire_type}")
        if stop > end:
            raise ValueError("a field ends beyond its message")
        if tag >> 3 == number:
            yield Field(number, start, stop, whole)
        start = stop


def read_varint(content: bytes, start: int) -> tuple[int, int]:
    """Return a number of seven bits per byte, and the offset after it."""
    value = shift = 0
    while True:
        byte = content[start]
        value, shift, start = value | (byte & 127) << shift, shift + 7, start + 1
        if byte < 128:
            return value, start
