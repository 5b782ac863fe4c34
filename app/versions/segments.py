"""Segments as files: walked record by record, and written one after the other."""

import errno
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.log_directory import segment_name
from springtide_client.records import HEADER, RecordHeader, parse_header

from app.versions.atomic_file import FULL, sync_folder

PIECE_BYTES = 1 << 20
CACHED_BYTES = 64 << 20  # the newest, for followers; pages of older ones are taken again by what is written next


def walk_segment(path: Path, limit: int | None = None, *, verify_after: int = -1) -> Iterator[tuple[RecordHeader, int]]:
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
        piece = file.read(min(length, PIECE_BYTES))
        if not piece:
            return -1
        crc, length = zlib.crc32(piece, crc), length - len(piece)
    return crc


class SegmentFiles:
    """An epoch's own segments. `write` belongs to one thread; `sync` may be called by another."""

    def __init__(self, log_path: Path, epoch: int, segment_bytes: int) -> None:
        self._log_path = log_path
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self._count = 0
        self._size = 0
        self._descriptor: int | None = None
        self._torn = False
        self._former: list[tuple[int, int]] = []  # descriptors and sizes of files of which pages may be cached
        self._lock = threading.Lock()  # around the descriptors, never around a write or an fsync

    def write(self, frame: bytes | Sequence[bytes | memoryview]) -> None:
        """Append a record, maybe in pieces. After an OSError the next one, which may be the same, goes to a new file.

        Unless nothing was written, as on a full disk: else every try would leave a file behind.
        """
        pieces = [memoryview(piece) for piece in ([frame] if isinstance(frame, bytes) else frame)]
        num_bytes = sum(map(len, pieces))
        if self._descriptor is None or self._torn or self._size + num_bytes > self._segment_bytes:
            self._roll()
        assert self._descriptor is not None
        self._torn, untouched = True, True  # until it is whole
        for piece in pieces:
            view = piece
            while len(view):
                try:
                    written = os.write(self._descriptor, view)
                except OSError as error:
                    self._torn = not untouched or error.errno not in FULL
                    raise
                if written == 0:
                    raise OSError(errno.EIO, "nothing was written")
                view, untouched = view[written:], False
        self._torn = False
        self._size += num_bytes

    def sync(self) -> None:
        """What was written before the call is on the disk when it returns.

        Raises LogError, after which nobody knows what is on the disk: a later fsync would say yes and not mean it.
        """
        with self._lock:
            descriptor = None if self._descriptor is None else os.dup(self._descriptor)
            size = self._size
        if descriptor is not None:
            try:
                os.fsync(descriptor)
                self._uncache(descriptor, size)
            except OSError as error:
                raise LogError(f"fsync of the log failed: {error.strerror}") from None
            finally:
                os.close(descriptor)

    def _uncache(self, descriptor: int, size: int) -> None:
        """Let go of the pages of what is older than the newest `CACHED_BYTES`, of which so much is synced."""
        _let_go(descriptor, size - CACHED_BYTES)
        with self._lock:
            former, self._former = self._former, []
            for older, older_size in reversed(former):
                _let_go(older, older_size + size - CACHED_BYTES)
                if size < CACHED_BYTES:
                    self._former.insert(0, (older, older_size))
                else:
                    os.close(older)
                size += older_size

    def close(self) -> None:
        """Give the files back, without syncing them."""
        with self._lock:
            descriptors = [older for older, _ in self._former]
            if self._descriptor is not None:
                descriptors.append(self._descriptor)
            self._descriptor, self._former = None, []
        for descriptor in descriptors:
            os.close(descriptor)

    def _roll(self) -> None:
        """1. fsync the present file. 2. Make the next one. 3. fsync the folder. Only then a record may go there."""
        self.sync()
        if self._size or self._torn or self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._log_path / segment_name(self._epoch, self._count), flags, 0o644)
            self._count += 1
            sync_folder(self._log_path)
            with self._lock:
                if self._descriptor is not None:
                    self._former.append((self._descriptor, self._size))
                self._descriptor, self._size = descriptor, 0
            self._torn = False


def _let_go(descriptor: int, num_bytes: int) -> None:
    if num_bytes > 0:
        os.posix_fadvise(descriptor, 0, num_bytes, os.POSIX_FADV_DONTNEED)
