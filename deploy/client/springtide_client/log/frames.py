"""Walk the records of a file from its beginning, or from any record on: the one reader of frames.

It stops at what is not written whole. A damaged header raises; `sound_frames` stops there too.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from springtide_client.errors import CorruptRecordError
from springtide_client.format.records import HEADER, Record, RecordHeader, parse_header
from springtide_client.system.files import read_fully


class Frame(NamedTuple):
    """A record where it lies: its checked header, its file, and its offset there. The payload is read on demand."""

    header: RecordHeader
    path: Path
    offset: int

    @property
    def num_bytes(self) -> int:
        return HEADER.size + self.header.length

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.offset + self.num_bytes

    def read_bytes(self, length: int, start: int = 0) -> bytes:
        """Return a piece of the payload, unverified. FileNotFoundError if the file is gone."""
        with self.path.open("rb") as file:
            return read_fully(file.fileno(), length, self.offset + HEADER.size + start)

    def read(self, descriptor: int | None = None) -> Record:
        """Read and verify it, from `descriptor` if its file is open.

        CorruptRecordError if it does not match its checksum, FileNotFoundError if the file is gone.
        """
        length = self.header.length
        if descriptor is None:
            return Record.verify_payload(self.header, self.read_bytes(length))
        return Record.verify_payload(self.header, read_fully(descriptor, length, self.offset + HEADER.size))


def frame_at(descriptor: int, path: Path, offset: int, end: int) -> Frame | None:
    """Return the record at an offset of an open file; None if it is not whole in the first `end` bytes.

    CorruptRecordError if its header does not match its own checksum.
    """
    head = read_fully(descriptor, HEADER.size, offset) if offset + HEADER.size <= end else b""
    if len(head) < HEADER.size:
        return None
    frame = Frame(parse_header(head), path, offset)
    return frame if frame.end <= end else None


def frames_of(descriptor: int, path: Path, limit: int | None = None, start: int = 0) -> Iterator[Frame]:
    """Yield each whole record of an open file as `frames` does."""
    size = os.fstat(descriptor).st_size
    end = size if limit is None else min(size, limit)
    while (frame := frame_at(descriptor, path, start, end)) is not None:
        yield frame
        start = frame.end


def frames(path: Path, limit: int | None = None, start: int = 0) -> Iterator[Frame]:
    """Yield each whole record from the offset `start` on, up to `limit` bytes (None: to the end of the file).

    CorruptRecordError at a damaged header. Yields nothing if the file has been deleted.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from frames_of(file.fileno(), path, limit, start)


def sound_frames(path: Path, limit: int | None = None, start: int = 0) -> Iterator[Frame]:
    """Yield the same, and stop at a damaged header."""
    with suppress(CorruptRecordError):
        yield from frames(path, limit, start)
