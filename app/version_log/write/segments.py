"""Segments as files: walked record by record, and written one after the other."""

import errno
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.records import HEADER, RecordHeader, parse_header
from springtide_client.format.tensor_writer import start_writeback
from springtide_client.log.directory import segment_name
from springtide_client.system.files import NO_SPACE_ERRNOS, fsync_folder

READ_CHUNK_BYTES = 1 << 20
PAGE_CACHE_BYTES = 64 << 20  # the newest, for followers; pages of older ones are taken again by what is written next
MIN_WRITEBACK_BYTES = 1 << 20  # fewer are not worth a request to the disk of their own


def scan_segment(path: Path, limit: int | None = None, *, verify_after: int = -1) -> Iterator[tuple[RecordHeader, int]]:
    """The headers of a segment's whole records, each with the offset behind it; ends at the first that is not whole.

    The payloads of records with a number above `verify_after` are read and checked, the others are passed over.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:  # retired
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        end, offset = size if limit is None else min(size, limit), 0
        while offset + HEADER.size <= end:
            file.seek(offset)
            try:
                header = parse_header(file.read(HEADER.size))
            except CorruptRecordError:
                return
            offset += HEADER.size + header.length
            if offset > end or (header.number > verify_after and _crc(file, header.length) != header.payload_crc):
                return
            yield header, offset


def _crc(file: BinaryIO, length: int) -> int:
    crc = 0
    while length:
        piece = file.read(min(length, READ_CHUNK_BYTES))
        if not piece:
            return -1
        crc, length = zlib.crc32(piece, crc), length - len(piece)
    return crc


@dataclass(eq=False)
class OpenSegment:
    """A file of ours; sizes in bytes from its start."""

    descriptor: int
    size: int = 0  # of whole records
    synced: int = 0
    writeback_started: int = 0  # for so much the disk was asked to begin
    dropped: int = 0  # of which the pages may be taken for other things

    def start_writeback(self) -> None:
        """The disk may begin, so that whoever syncs, and who waits for that, has less to wait for."""
        if self.size - self.writeback_started >= MIN_WRITEBACK_BYTES:
            start_writeback(self.descriptor, self.writeback_started, self.size - self.writeback_started)
            self.writeback_started = self.size

    def drop_cached_pages(self, num_bytes: int) -> int:
        """The oldest pages, as far as they are synced. Returns of how many bytes."""
        until = min(self.dropped + num_bytes, self.synced)
        if until <= self.dropped:
            return 0
        os.posix_fadvise(self.descriptor, 0, until, os.POSIX_FADV_DONTNEED)
        num_bytes, self.dropped = until - self.dropped, until
        return num_bytes


class SegmentWriter:
    """An epoch's own segments. `write` belongs to one thread; `sync` may be called by another."""

    def __init__(self, log_path: Path, epoch: int, segment_bytes: int) -> None:
        self._log_path = log_path
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self._count = 0
        self._file: OpenSegment | None = None
        self._torn = False
        self._full: list[OpenSegment] = []  # oldest first: of which pages may be cached
        self._lock = threading.Lock()  # around the descriptors, never around a write or an fsync

    def write(self, frame: bytes | Sequence[bytes | memoryview]) -> None:
        """Append a record, maybe in pieces. After an OSError the next one, which may be the same, goes to a new file.

        Unless nothing was written, as on a full disk: else every try would leave a file behind.
        """
        pieces = [memoryview(piece) for piece in ([frame] if isinstance(frame, bytes) else frame)]
        num_bytes = sum(map(len, pieces))
        if self._file is None or self._torn or self._file.size + num_bytes > self._segment_bytes:
            self._roll_over()
        assert self._file is not None
        self._drop_cached_pages(num_bytes)
        self._torn, untouched = True, True  # until it is whole
        for piece in pieces:
            view = piece
            while len(view):
                try:
                    written = os.write(self._file.descriptor, view)
                except OSError as error:
                    self._torn = not untouched or error.errno not in NO_SPACE_ERRNOS
                    raise
                if written == 0:
                    raise OSError(errno.EIO, "nothing was written")
                view, untouched = view[written:], False
        self._torn = False
        self._file.size += num_bytes

    def start_writeback(self) -> None:
        """What was written may go to the disk from now on; whoever wrote it calls this, and waits for nothing."""
        if self._file is not None:
            self._file.start_writeback()

    def sync(self) -> None:
        """What was written before the call is on the disk when it returns.

        Raises LogError, after which nobody knows what is on the disk: a later fsync would say yes and not mean it.
        """
        with self._lock:
            file = self._file
            if file is None:
                return
            descriptor, size = os.dup(file.descriptor), file.size
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise LogError(f"fsync of the log failed: {error.strerror}") from None
        finally:
            os.close(descriptor)
        file.synced = max(file.synced, size)

    def _drop_cached_pages(self, num_bytes: int) -> None:
        """Pages beyond the newest `CACHED_BYTES` are let go of right before as many are written.

        Not sooner, nor many more at a time: a virtual machine gives free pages back to its host, and has to ask for
        them again.
        """
        assert self._file is not None
        over = sum(file.size - file.dropped for file in (*self._full, self._file)) + num_bytes - PAGE_CACHE_BYTES
        over = min(over, 2 * num_bytes)
        for file in (*self._full, self._file):
            if over > 0:
                over -= file.drop_cached_pages(over)
        done = [file for file in self._full if file.dropped == file.size]
        with self._lock:
            self._full = [file for file in self._full if file not in done]
        for file in done:
            os.close(file.descriptor)

    def close(self) -> None:
        """Give the files back, without syncing them."""
        with self._lock:
            files = [*self._full, *([] if self._file is None else [self._file])]
            self._file, self._full = None, []
        for file in files:
            os.close(file.descriptor)

    def _roll_over(self) -> None:
        """1. fsync the present file. 2. Make the next one. 3. fsync the folder. Only then a record may go there."""
        self.sync()
        if self._file is None or self._file.size or self._torn:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._log_path / segment_name(self._epoch, self._count), flags, 0o644)
            self._count += 1
            fsync_folder(self._log_path)
            with self._lock:
                if self._file is not None:
                    self._full.append(self._file)
                self._file = OpenSegment(descriptor)
            self._torn = False
