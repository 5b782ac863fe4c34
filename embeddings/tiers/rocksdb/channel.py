"""Channels of shared memory between the table's process and the spill's, and the child's settings.

Imports no numpy, like everything that the child imports, so that the child starts fast.
"""

import json
import mmap
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE

KEY_BYTES = 10
LINE = 64


def send_message(connection: socket.socket, message: Sequence[Any]) -> None:
    """Send one line of JSON: macOS has no sockets of whole messages that also say when the other end has gone."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive_message(connection: socket.socket) -> list[Any] | None:
    """Receive one line; None if the other end is closed. TimeoutError between two pieces of it.

    The other end sends no second line before the first has its response.
    """
    line = connection.recv(1 << 16)
    while line and not line.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        line = line + piece if piece else b""
    message: list[Any] | None = json.loads(line) if line else None
    return message


class CorruptSpillBlockError(Exception):
    """A record differs from what was written. A retry does not help."""


@dataclass(frozen=True)
class ChannelLayout:
    """A channel's part of the shared memory: keys, then kinds, then the records of rows without gaps."""

    num_keys: int
    record_bytes: int

    @property
    def kinds_at(self) -> int:
        return KEY_BYTES * self.num_keys

    @property
    def records_at(self) -> int:
        return -(-(KEY_BYTES + 1) * self.num_keys // LINE) * LINE

    @property
    def num_bytes(self) -> int:
        return -(-(self.records_at + self.record_bytes * self.num_keys) // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True)
class ProcessSettings:
    """The only command-line argument of the child, as JSON."""

    folder: str
    parent: int  # its process id
    memory: int  # file descriptor
    sockets: list[int]  # file descriptors: the worker's, then those for finds
    num_keys: int
    record_bytes: int

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @property
    def layout(self) -> ChannelLayout:
        return ChannelLayout(self.num_keys, self.record_bytes)


class ServerChannel:
    """The child's end of a channel: a socket, and keys and values as bytes in a part of the shared memory."""

    def __init__(self, connection: socket.socket, memory: mmap.mmap, index: int, layout: ChannelLayout) -> None:
        self.connection, self.layout = connection, layout
        self._memory, self._start = memory, index * layout.num_bytes

    def keys(self, num: int) -> list[bytes]:
        return self._read_each(0, KEY_BYTES, num)

    def records(self, num: int) -> list[bytes]:
        return self._read_each(self.layout.records_at, self.layout.record_bytes, num)

    def put_keys(self, keys: Sequence[bytes]) -> None:
        self._write(0, b"".join(keys))

    def put_values(self, values: Sequence[bytes | None], kinds_at: int = 0, records_at: int = 0) -> int:
        """Write the kinds of values, and the rows among them. Return the number of rows.

        None is an absent key, an empty value a tombstone. CorruptRecordError for a row of the wrong size.
        """
        width = self.layout.record_bytes
        try:
            only_rows = set(map(len, values)) <= {width}  # type: ignore[arg-type]
        except TypeError:  # None has no length
            only_rows = False
        if only_rows:
            kinds, num_rows = bytes([ROW]) * len(values), len(values)
        else:
            lengths = [-1 if value is None else len(value) for value in values]
            if wrong := set(lengths) - {-1, 0, width}:
                raise CorruptSpillBlockError(f"a record of {wrong.pop()} bytes instead of {width}")
            kinds = bytes(ROW if length > 0 else TOMBSTONE if length == 0 else ABSENT for length in lengths)
            num_rows = kinds.count(ROW)
        self._write(self.layout.kinds_at + kinds_at, kinds)
        self._write(self.layout.records_at + width * records_at, b"".join(filter(None, values)))
        return num_rows

    def _read_each(self, at: int, width: int, num: int) -> list[bytes]:
        """Strings of equal width: struct makes them in half the time that slices take."""
        return list(struct.unpack_from(f"{width}s" * num, self._memory, self._start + at))

    def _write(self, at: int, data: bytes) -> None:
        self._memory[self._start + at : self._start + at + len(data)] = data
