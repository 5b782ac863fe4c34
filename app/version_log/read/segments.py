"""Read a segment file record by record: headers only, or with their payloads checked."""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from springtide_client.errors import CorruptRecordError
from springtide_client.format.records import HEADER, RecordHeader, parse_header

READ_CHUNK_BYTES = 1 << 20
HEADERS_ONLY = 2**63  # as `verify_after`: above every version number


def scan_segment(
    path: Path, limit: int | None = None, *, verify_after: int = -1, start: int = 0
) -> Iterator[tuple[RecordHeader, int]]:
    """Yield the header of each complete record from the offset `start` on, and the offset at which the record ends.

    Stops at the first record that is incomplete or damaged, or at `limit` bytes (None: at the end of the file).
    Payloads of records numbered above `verify_after` are read and checked against their CRC; others are skipped.
    Yields nothing if the file has been deleted.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        end, offset = size if limit is None else min(size, limit), start
        while offset + HEADER.size <= end:
            file.seek(offset)
            try:
                header = parse_header(file.read(HEADER.size))
            except CorruptRecordError:
                return
            offset += HEADER.size + header.length
            if offset > end or (header.number > verify_after and _crc32(file, header.length) != header.payload_crc):
                return
            yield header, offset


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it has been deleted."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _crc32(file: BinaryIO, length: int) -> int:
    crc = 0
    while length:
        chunk = file.read(min(length, READ_CHUNK_BYTES))
        if not chunk:
            return -1
        crc, length = zlib.crc32(chunk, crc), length - len(chunk)
    return crc
