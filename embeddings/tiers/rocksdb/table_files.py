"""The files of a RocksDB database as its formats describe them: the MANIFEST, which says what table files there are,
and table files, mapped, with their indexes in memory: 12 bytes for each block of 4 KiB.

The MANIFEST is followed while RocksDB appends to it. It is a log of records in blocks of 32 KiB (RocksDB's
db/log_format.h), each a VersionEdit of tagged fields (db/version_edit.cc).
"""

# B blocks
import mmap
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.table_file import blocks, find
from springtide.kernels.cpu.table_file.blocks import SHORTEST, block_checksum

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


FOOTER_BYTES, TRAILER_BYTES = 53, 5
MAGIC = (0x88E241B785F4CFF7).to_bytes(8, "little")
EXTENDED_MAGIC, FORMAT_VERSION, XXH3 = b"\x3e\x00\x7a\x00", 6, 4
RAW, SNAPPY = 0, 1
MAX_INDEX_BYTES, MAX_FILE_BYTES = 1 << 28, 1 << 32
FILTER_NAME, INDEX_NAME = b"fullfilter.rocksdb.BuiltinBloomFilter", b"rocksdb.index"
FILTER_METADATA_BYTES, LINE_BYTES = 5, 64


class TableFile:
    """The file stays mapped, also after RocksDB has deleted it, until this object is gone."""

    def __init__(self, folder: Path, live: LiveFile) -> None:
        """OSError if it is gone; UnknownFormatError if it holds what is not read here, or is damaged."""
        with (folder / f"{live.number:06d}.sst").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != live.num_bytes or not FOOTER_BYTES < size < MAX_FILE_BYTES:
                raise UnknownFormatError(f"{file.name} has {size} bytes instead of {live.num_bytes}")
            self._map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)  # a miss reads a page, not 128 KiB
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.smallest, self.largest = (int.from_bytes(key[:8], "big") for key in (live.smallest, live.largest))
        try:
            self._read_parts(size)
        except (IndexError, KeyError) as error:
            raise UnknownFormatError(f"table file {live.number}: {error!r}") from None
        self.columns = np.zeros(find.NUM_COLUMNS, np.int64)
        self.columns[find.FILE], self.columns[find.NUM_BLOCKS] = self.bytes.ctypes.data, len(self.separators_B)
        self.columns[find.SEPARATORS] = self.separators_B.ctypes.data
        self.columns[find.OFFSETS], self.columns[find.CHECKED] = self.offsets_B1.ctypes.data, self.checked_B.ctypes.data
        self.columns[find.FILTER], self.columns[find.FILTER_LINES], self.columns[find.FILTER_PROBES] = self.filter
        self.columns[find.CHECKSUM_BASE] = self.checksum_base

    def num_bytes(self) -> int:
        """Bytes of memory, without the mapped file."""
        return self.separators_B.nbytes + self.offsets_B1.nbytes + self.checked_B.nbytes

    def _read_parts(self, size: int) -> None:
        footer = bytes(self._map[size - FOOTER_BYTES :])
        known = bytes([XXH3]) + EXTENDED_MAGIC, FORMAT_VERSION.to_bytes(4, "little") + MAGIC
        if (footer[:5], footer[41:]) != known:
            raise UnknownFormatError("another version of the table format")
        self.checksum_base = int.from_bytes(footer[9:13], "little")
        meta_bytes = int.from_bytes(footer[13:17], "little")
        parts = _entries(bytes(self._map[size - FOOTER_BYTES - TRAILER_BYTES - meta_bytes :][:meta_bytes]))
        self.filter = self._filter(*self._checked(parts[FILTER_NAME]))
        self.separators_B, self.offsets_B1 = self._index(*self._checked(parts[INDEX_NAME]))
        if not len(self.separators_B) or int(self.offsets_B1[-1]) > size:
            raise UnknownFormatError("an index that leads outside its file")
        self.checked_B = np.zeros(len(self.separators_B), np.uint8)

    def _checked(self, handle: bytes) -> tuple[int, int, int]:
        """The offset, size and kind of a block after comparing its checksum."""
        reader = Reader(handle)
        offset, size = reader.varint(), reader.varint()
        if offset + size + TRAILER_BYTES > len(self.bytes) or not SHORTEST <= size <= MAX_INDEX_BYTES:
            raise UnknownFormatError(f"a block of {size} bytes at {offset}")
        stored = int.from_bytes(self._map[offset + size + 1 : offset + size + TRAILER_BYTES], "little")
        if block_checksum(self.bytes.ctypes.data + offset, size, offset, self.checksum_base) != stored:
            raise UnknownFormatError(f"the block at {offset} does not match its checksum")
        return offset, size, self._map[offset + size]

    def _filter(self, offset: int, size: int, kind: int) -> tuple[int, int, int]:
        """The filter's address, its lines and probes."""
        always, variant, probes, *seed = self._map[offset + size - FILTER_METADATA_BYTES : offset + size]
        lines, rest = divmod(size - FILTER_METADATA_BYTES, LINE_BYTES)
        if kind != RAW or (always, variant, *seed, rest) != (0xFF, 0, 0, 0, 0) or not 0 < probes < 32:
            raise UnknownFormatError("another kind of filter")
        return self.bytes.ctypes.data + offset, lines, probes

    def _index(self, offset: int, size: int, kind: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """The separators after each block, and the offsets between blocks."""
        content = self.bytes[offset : offset + size]
        if kind == SNAPPY:
            import pyarrow

            length = Reader(bytes(content[:5])).varint()
            if length > MAX_INDEX_BYTES:
                raise UnknownFormatError(f"an index of {length} bytes")
            content = np.frombuffer(pyarrow.Codec("snappy").decompress(content, length), np.uint8)
        elif kind != RAW:
            raise UnknownFormatError("an index compressed in another way")
        capacity = len(content) // 4  # of the smallest entry: three lengths and a byte
        separators, offsets = np.empty(capacity, np.uint64), np.empty(capacity + 1, np.uint32)
        num_blocks = blocks.parse_index(content.ctypes.data, len(content), separators, offsets)
        if num_blocks < 0:
            raise UnknownFormatError("an index with keys in another form")
        return separators[:num_blocks].copy(), offsets[: num_blocks + 1].copy()


def _entries(block: bytes) -> dict[bytes, bytes]:
    """The entries of a small block."""
    packed = int.from_bytes(block[-4:], "little")
    reader = Reader(block[: len(block) - 4 - 4 * packed]) if packed >> 31 == 0 else Reader(b"")
    key, entries = b"", {}
    while reader.at < len(reader.data):
        shared, rest, length = reader.varint(), reader.varint(), reader.varint()
        key = key[:shared] + reader.data[reader.at : reader.at + rest]
        reader.at += rest + length
        entries[key] = reader.data[reader.at - length : reader.at]
    return entries
