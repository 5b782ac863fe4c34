"""Encode versions as chained records, and write and fsync the segment files that hold them."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.format.records import Head, ShardEntry, VersionMeta, encode_pieces, encode_shard_pieces
from springtide_client.format.tensor_writer import start_writeback
from springtide_client.format.tensors import Arrays
from springtide_client.log.listing import segment_name, shard_segment_name
from springtide_client.system.files import NO_SPACE_ERRNOS, fsync_folder, sync_descriptor

PAGE_CACHE_BYTES = 64 << 20  # of the newest records, kept for followers; older pages are reused for new records
MIN_WRITEBACK_BYTES = 1 << 20  # a smaller request to the disk costs more than it saves
MAX_PIECES = 512  # that one call writes; POSIX allows at least 16, Linux 1,024


@dataclass(eq=False)
class PendingRecord:
    """A version that is not written yet. `head` and `frame` are set when it is encoded.

    `num_pooled_bytes`: of arrays whose memory is bounded by their owner. `follows_state`: it is published only once its
    exact state is written.
    """

    number: int
    meta: VersionMeta
    tensors: Arrays
    head: Head | None = None
    frame: list[bytes | memoryview] = field(default_factory=list)
    num_pooled_bytes: int = 0
    follows_state: bool = False
    encoded: threading.Event = field(default_factory=threading.Event)

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays in bytes, without those that are bounded elsewhere."""
        return sum(array.nbytes for array in self.tensors.values()) - self.num_pooled_bytes


class RecordEncoder:
    """Encodes one epoch's versions, each onto the one before. Any thread may call it."""

    def __init__(
        self, epoch: int, last: Head | None, shards_of: Callable[[int], Sequence[ShardEntry]] = lambda number: ()
    ) -> None:
        """`shards_of` returns the shard records that other ranks have written of a version, and waits for them."""
        self.last = last  # the newest encoded version; None before the first base of a new log
        self._epoch, self._shards_of = epoch, shards_of
        self._lock = threading.Lock()

    def encode(self, *versions: PendingRecord) -> Head:
        """Encode the versions in order, skipping those that have a frame already; return the head of the last."""
        with self._lock:
            for version in versions:
                if version.head is None:
                    version.frame, checksum = self._encode(version)
                    version.head = self.last = Head(version.number, checksum)
                    version.encoded.set()
        assert version.head is not None
        return version.head

    def _encode(self, version: PendingRecord) -> tuple[list[bytes | memoryview], int]:
        assert self.last is not None
        shards = self._shards_of(version.number)
        parent = self.last.checksum
        return encode_pieces(self._epoch, version.number, parent, version.meta, version.tensors, shards)


class ShardEncoder(RecordEncoder):
    """Encodes the shard records of one rank above 0. They have no parents and no meta: their version record has."""

    def __init__(self, epoch: int, last: Head | None, rank: int) -> None:
        super().__init__(epoch, last)
        self._rank = rank

    def _encode(self, version: PendingRecord) -> tuple[list[bytes | memoryview], int]:
        return encode_shard_pieces(self._epoch, version.number, self._rank, version.tensors)


@dataclass(eq=False)
class OpenSegment:
    """A segment file this process writes. All fields but the descriptor count bytes from the start of the file."""

    descriptor: int
    size: int = 0  # of complete records
    synced: int = 0
    writeback_started: int = 0
    dropped: int = 0  # from the page cache

    def start_writeback(self) -> None:
        """Ask the kernel to start writing new pages to disk, so that a later fsync has less to wait for."""
        if self.size - self.writeback_started >= MIN_WRITEBACK_BYTES:
            start_writeback(self.descriptor, self.writeback_started, self.size - self.writeback_started)
            self.writeback_started = self.size

    def drop_cached_pages(self, num_bytes: int) -> int:
        """Drop up to `num_bytes` of the oldest synced pages from the page cache; return how many bytes."""
        until = min(self.dropped + num_bytes, self.synced)
        if until <= self.dropped:
            return 0
        if sys.platform == "linux" and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, 0, until, os.POSIX_FADV_DONTNEED)
        num_bytes, self.dropped = until - self.dropped, until
        return num_bytes


class SegmentWriter:
    """Appends records to one epoch's segments. Only one thread may call `write`; another may call `sync`."""

    def __init__(self, log_path: Path, epoch: int, segment_bytes: int, rank: int = 0) -> None:
        self._log_path = log_path
        self._epoch, self._rank = epoch, rank
        self._segment_bytes = segment_bytes
        self._count = 0
        self._file: OpenSegment | None = None
        self._torn = False
        self._full: list[OpenSegment] = []  # oldest first; those with pages left in the page cache
        self._lock = threading.Lock()  # around the descriptors, never around a write or an fsync

    def write(self, frame: bytes | Sequence[bytes | memoryview]) -> None:
        """Append one record, given whole or in pieces.

        After an OSError the next call, which may repeat the same record, starts a new file, because half a record may
        have been written. If nothing was written, as on a full disk, it continues in the same file: otherwise every
        retry would leave an empty file behind.
        """
        pieces = [memoryview(piece).cast("B") for piece in ([frame] if isinstance(frame, bytes) else frame)]
        num_bytes = sum(map(len, pieces))
        if self._file is None or self._torn or self._file.size + num_bytes > self._segment_bytes:
            self._roll_over()
        assert self._file is not None
        self._drop_cached_pages(num_bytes)
        self._torn, untouched = True, True  # until the record is complete
        # many pieces with one call: every call wakes the followers, for which there is nothing yet
        pieces = [piece for piece in pieces if len(piece)]
        while pieces:
            try:
                written = os.writev(self._file.descriptor, pieces[:MAX_PIECES])
            except OSError as error:
                self._torn = not untouched or error.errno not in NO_SPACE_ERRNOS
                raise
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            pieces, untouched = without_first(pieces, written), False
        self._torn = False
        self._file.size += num_bytes

    def start_writeback(self) -> None:
        """Ask the kernel to start writing new records to disk; does not block. Called by the writing thread."""
        if self._file is not None:
            self._file.start_writeback()

    def sync(self) -> None:
        """Make everything written before the call durable.

        LogError if fsync fails. After that nothing more may be appended: the kernel may have dropped the failed pages,
        and a later fsync would succeed without having written them.
        """
        with self._lock:
            file = self._file
            if file is None:
                return
            descriptor, size = os.dup(file.descriptor), file.size
        try:
            sync_descriptor(descriptor)
        except OSError as error:
            raise LogError(f"fsync of the log failed: {error.strerror}") from None
        finally:
            os.close(descriptor)
        file.synced = max(file.synced, size)

    def _drop_cached_pages(self, num_bytes: int) -> None:
        """Keep at most the newest PAGE_CACHE_BYTES in the page cache, just before `num_bytes` are written.

        Pages are dropped late and few at a time, because a virtual machine returns free pages to its host and pays to
        get them back.
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
        """Close all files without syncing them."""
        with self._lock:
            files = [*self._full, *([] if self._file is None else [self._file])]
            self._file, self._full = None, []
        for file in files:
            os.close(file.descriptor)

    def _roll_over(self) -> None:
        """1. fsync the present file. 2. Create the next one. 3. fsync the folder. Only then write a record to it."""
        self.sync()
        if self._file is None or self._file.size or self._torn:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._log_path / self._next_name(), flags, 0o644)
            self._count += 1
            fsync_folder(self._log_path)
            with self._lock:
                if self._file is not None:
                    self._full.append(self._file)
                self._file = OpenSegment(descriptor)
            self._torn = False

    def _next_name(self) -> str:
        if self._rank:
            return shard_segment_name(self._epoch, self._rank, self._count)
        return segment_name(self._epoch, self._count)


def without_first(pieces: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return what remains of the pieces behind their first bytes."""
    for index, piece in enumerate(pieces):
        if num_bytes < len(piece):
            return [piece[num_bytes:], *pieces[index + 1 :]]
        num_bytes -= len(piece)
    return []
