"""The log as a folder, read only: the current manifest, the bases, the segments, records from any position.

app.version_log writes these files.

"""

import contextlib
import ctypes
import os
import select
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.format.checksums import decode_checksummed_json
from springtide_client.format.records import Head, Record
from springtide_client.log.base import Base, read_base_manifest
from springtide_client.log.cursor import LogCursor
from springtide_client.log.listing import CurrentManifest, Listing, LogManifest, base_name, claim_name, manifest_name
from springtide_client.log.shard_files import EVERY_SHARD, ShardChoice
from springtide_client.schema import Schema

# of inotify(7), whose descriptor takes the flags of open(2)
MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
EVENT_BYTES = 1 << 16
# of statfs(2): ext4, xfs, btrfs, tmpfs, zfs, f2fs, bcachefs
LOCAL_FILE_SYSTEMS = {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E}
LOCAL_SECONDS = 0.05  # the least that a wait lasts there if nothing happens


class LogDirectory:
    """A log's folder. Every method reads the folder again; none changes it."""

    def __init__(self, path: str | Path, choice: ShardChoice = EVERY_SHARD) -> None:
        """`choice`: which shard records of a version are read."""
        self.path, self._choice = Path(path), choice
        self._current: CurrentManifest | None = None

    def scan(self) -> Listing:
        """List the folder; an empty listing when it is missing."""
        try:
            return Listing.of(os.listdir(self.path))
        except FileNotFoundError:
            return Listing.of([])

    def manifest(self, listing: Listing | None = None) -> LogManifest | None:
        """Return the newest manifest, even while a higher epoch is claimed; None in a log without one."""
        current = self.current_manifest(listing or self.scan())
        return None if current is None else current.manifest

    def current_manifest(self, listing: Listing) -> CurrentManifest | None:
        """Return the newest manifest with the time it was written, which identifies it; LogError when corrupt."""
        epoch, current = listing.manifest_epoch, self._current
        if not epoch:
            return None
        path = self.path / manifest_name(epoch)
        written_ns = path.stat().st_mtime_ns
        if current is None or (current.manifest.epoch, current.written_ns) != (epoch, written_ns):
            current = CurrentManifest(
                decode_checksummed_json(path.read_bytes(), LogManifest, str(path)),
                written_ns,
            )
            self._current = current
        return current

    def is_fenced(self, epoch: int) -> bool:
        """Return True if a higher epoch was claimed. Claims are made in order and never removed."""
        return os.path.exists(self.path / claim_name(epoch + 1))

    def readable_segments(self, listing: Listing, manifest: LogManifest) -> list[tuple[str, int | None]]:
        """Return the segments that readers may read, in order, each with its number of valid bytes (None: all)."""
        own: list[tuple[str, int | None]] = [(name, None) for name in listing.segments.get(manifest.epoch, [])]
        present = {name for names in listing.segments.values() for name in names}
        return [(sealed.file, sealed.bytes) for sealed in manifest.sealed if sealed.file in present] + own

    def bases(self) -> list[Path]:
        """Return the bases that belong to the log, oldest first."""
        listing = self.scan()
        return [self.path / base_name(number) for number in listing.valid_bases(self.manifest(listing))]

    def newest_base(self) -> Path | None:
        """Return the newest base. Retention may delete it before it is opened: see `open_base`."""
        return next(reversed(self.bases()), None)

    def bases_before(self, than: Path) -> list[Path]:
        """Return the bases older than this one, newest first."""
        return [path for path in reversed(self.bases()) if path.name < than.name]

    def local_base(self) -> Path | None:
        """Return the newest base: in a folder all bases are local."""
        return self.newest_base()

    def open_base(self) -> Base | None:
        """Open the newest base that can be opened; None in a log without bases; LogError when all are corrupt."""
        error: LogError | None = None
        for path in reversed(self.bases()):
            try:
                return Base.open(path)
            except LogError as corrupt:
                error = error or corrupt
        if error:
            raise error
        return None

    def newest_schema(self) -> Schema | None:
        """Return the schema of the newest base that can be read; None in a log without one."""
        for path in reversed(self.bases()):
            with contextlib.suppress(LogError, OSError):
                return read_base_manifest(path).decode_schema()
        return None

    def follow(self, after: Head | None) -> LogCursor:
        """Return a cursor behind a version; None: at the oldest record."""
        return LogCursor(self, after, self._choice)

    def records(self, after: Head | None) -> Iterator[Record]:
        """Yield the records after a version (None: from the oldest on) up to the current end.

        Raises GapError where the log does not continue that version, CorruptRecordError at corrupt bytes.
        """
        with self.follow(after) as cursor:
            while records := cursor.read():
                yield from records


class DirectoryWatcher:
    """Watches one folder, for one thread. Kernel resources are allocated by the first wait."""

    def __init__(self, path: str | Path) -> None:
        self._path = os.fsencode(path)
        self._descriptor: int | None = None
        self._is_watching = self._is_started = self._is_local = False

    def wait(self, seconds: float) -> None:
        """Return once a file in the folder is created, moved there or written to, at the latest after `seconds`.

        A wait of more than 0 lasts at least LOCAL_SECONDS where every change is seen.
        """
        if not self._is_started:
            self._start()
        descriptor = self._descriptor
        if descriptor is None or not (self._is_watching or self._watch(descriptor)):
            time.sleep(seconds)
            return
        if self._is_local and seconds > 0:
            seconds = max(seconds, LOCAL_SECONDS)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(descriptor, EVENT_BYTES)

    def _start(self) -> None:
        self._is_started, self._descriptor = True, _inotify()
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    def _watch(self, descriptor: int) -> bool:
        add = ctypes.CDLL(None).inotify_add_watch
        self._is_watching = add(descriptor, self._path, MODIFY | MOVED_TO | CREATE) >= 0
        self._is_local = self._is_watching and _file_system(self._path) in LOCAL_FILE_SYSTEMS
        return self._is_watching


def _inotify() -> int | None:
    """Return a new inotify descriptor; None where the system has no inotify, or the user has too many."""
    init = getattr(ctypes.CDLL(None), "inotify_init1", None)
    descriptor = -1 if init is None else int(init(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None


def _file_system(path: bytes) -> int | None:
    """Return the type of the file system, statfs's first field; None where it is not known."""
    statfs = getattr(ctypes.CDLL(None), "statfs", None)
    result = ctypes.create_string_buffer(1024)  # larger than the structure on any system
    if statfs is None or ctypes.sizeof(ctypes.c_long) != 8 or statfs(path, result) != 0:
        return None
    return int.from_bytes(result.raw[:8], sys.byteorder)
