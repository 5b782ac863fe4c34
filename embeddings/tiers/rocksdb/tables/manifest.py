"""Which table files a RocksDB database consists of: its MANIFEST, followed while RocksDB appends to it.

Format: a log of records in blocks of 32 KiB (RocksDB's db/log_format.h), each a VersionEdit of tagged fields
(db/version_edit.cc).
"""

import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import crc32c

BLOCK_BYTES, HEADER_BYTES = 32 << 10, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
COMPARATOR, LOG_NUMBER, NEXT_FILE, LAST_SEQUENCE, DELETED_FILE, PREVIOUS_LOG, MIN_LOG = 1, 2, 3, 4, 6, 9, 10
NEW_FILE, COLUMN_FAMILY, MAX_COLUMN_FAMILY = 103, 200, 203
MAY_BE_SKIPPED = 1 << 13  # in tags that older versions of RocksDB may skip
END_OF_FIELDS, EPOCH, MUST_BE_KNOWN = 1, 13, 1 << 6  # fields of a new file


class UnknownFormatError(Exception):
    """A file of RocksDB holds something that is not read here."""


class LiveFile(NamedTuple):
    """A table file of the database. `smallest` and `largest` are its keys, with kind and sequence."""

    number: int
    level: int
    num_bytes: int
    smallest: bytes
    largest: bytes
    largest_sequence: int
    epoch: int  # of two files of level 0 the newer has the larger


@dataclass
class Reader:
    """Numbers and strings of RocksDB's files; IndexError where one is cut short."""

    data: bytes
    at: int = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def prefixed(self) -> bytes:
        length = self.varint()
        if length > len(self.data) - self.at:
            raise IndexError
        self.at += length
        return self.data[self.at - length : self.at]


class Manifest:
    """The live files of one database, as of the last `refresh`."""

    def __init__(self, folder: Path) -> None:
        """OSError if there is no database."""
        name = (folder / "CURRENT").read_text().strip()
        self._file = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._position = 0  # of the first byte that is not parsed
        self._fragments = b""
        self.files: dict[int, LiveFile] = {}
        self.flushed_sequence = 0  # every write up to this one is in a table file

    def refresh(self) -> bool:
        """Read what was appended; return True if files have changed. UnknownFormatError, OSError."""
        status = os.fstat(self._file)
        if status.st_nlink == 0:
            raise UnknownFormatError("the MANIFEST was replaced")
        if status.st_size - self._position <= HEADER_BYTES:
            return False
        data = os.pread(self._file, status.st_size - self._position, self._position)
        changed = False
        try:
            for record in self._records(data):
                changed |= self._apply(Reader(record))
        except IndexError:
            raise UnknownFormatError("a record of the MANIFEST contradicts itself") from None
        return changed

    def _records(self, data: bytes) -> list[bytes]:
        """The whole records in data that begins at the position, which is moved past them."""
        records, at = [], 0
        while True:
            left_in_block = BLOCK_BYTES - (self._position + at) % BLOCK_BYTES
            if left_in_block < HEADER_BYTES:
                at += left_in_block  # zeros
                continue
            if len(data) - at < HEADER_BYTES:
                break
            length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
            end = at + HEADER_BYTES + length
            if end > len(data):
                break
            payload = data[at + HEADER_BYTES : end]
            if _mask(crc32c.crc32c(data[at + 6 : end])) != int.from_bytes(data[at : at + 4], "little"):
                break  # not written whole yet
            if kind not in (FULL, FIRST, MIDDLE, LAST):
                raise UnknownFormatError(f"a record of kind {kind} in the MANIFEST")
            self._fragments = payload if kind in (FULL, FIRST) else self._fragments + payload
            if kind in (FULL, LAST):
                records.append(self._fragments)
            at = end
        self._position += min(at, len(data))
        return records

    def _apply(self, edit: Reader) -> bool:
        changed = False
        while edit.at < len(edit.data):
            tag = edit.varint()
            if tag in (LOG_NUMBER, NEXT_FILE, LAST_SEQUENCE, PREVIOUS_LOG, MIN_LOG, MAX_COLUMN_FAMILY):
                edit.varint()
            elif tag == COMPARATOR or tag & MAY_BE_SKIPPED:
                edit.prefixed()
            elif tag == COLUMN_FAMILY:
                if edit.varint() != 0:
                    raise UnknownFormatError("a second column family")
            elif tag == DELETED_FILE:
                edit.varint()
                self.files.pop(edit.varint(), None)
                changed = True
            elif tag == NEW_FILE:
                file = _new_file(edit)
                self.files[file.number] = file
                self.flushed_sequence = max(self.flushed_sequence, file.largest_sequence)
                changed = True
            else:
                raise UnknownFormatError(f"the tag {tag} in the MANIFEST")
        return changed


def _new_file(edit: Reader) -> LiveFile:
    level, number, num_bytes = edit.varint(), edit.varint(), edit.varint()
    smallest, largest = edit.prefixed(), edit.prefixed()
    edit.varint()
    largest_sequence, epoch = edit.varint(), 0
    while (tag := edit.varint()) != END_OF_FIELDS:
        field = edit.prefixed()
        if tag == EPOCH:
            epoch = Reader(field).varint()
        elif tag & MUST_BE_KNOWN:
            raise UnknownFormatError(f"the field {tag} of a file in the MANIFEST")
    return LiveFile(number, level, num_bytes, smallest, largest, largest_sequence, epoch)


def _mask(checksum: int) -> int:
    """A checksum as RocksDB stores it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
