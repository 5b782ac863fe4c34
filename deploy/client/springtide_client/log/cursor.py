"""Read records in order, by the rules for readers: only valid bytes count, parents must match, look before use."""

import os
from typing import NamedTuple

from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import Head, Record
from springtide_client.log.frames import Frame, frame_at
from springtide_client.log.listing import CurrentManifest, SegmentDirectory
from springtide_client.log.shard_files import EVERY_SHARD, ShardChoice, ShardFiles

READ_BYTES = 64 << 20  # about the most that one read returns


class _Position(NamedTuple):
    head: Head | None  # the version returned last
    file: str | None  # the segment that holds the next record; None: not yet known
    offset: int


class _ShardMissingError(Exception):
    """A version lists a shard record that is not in sight: the end of the log for now."""


class _ShardDamagedError(CorruptRecordError):
    """A version lists a shard record that is damaged: no later segment makes up for it."""


class LogCursor:
    """A position behind one version of a log; `read` returns the records that follow. Not thread-safe.

    A follower applies what `read` returns. After GapError or CorruptRecordError it starts again from the newest base,
    and serves its old view until the new one has caught up.
    """

    def __init__(self, directory: SegmentDirectory, after: Head | None, choice: ShardChoice = EVERY_SHARD) -> None:
        """`choice`: which shard records the reader needs of each version."""
        self._directory = directory
        self._position = _Position(after, None, 0)
        self._open_file: tuple[str, int] | None = None  # name and descriptor
        self._current: CurrentManifest | None = None  # the manifest at the last read
        self._shards, self._choice = ShardFiles(directory.path), choice

    @property
    def head(self) -> Head | None:
        """The version returned last; at first the one that the cursor was created behind."""
        return self._position.head

    def read(self, limit_bytes: int = READ_BYTES) -> list[Record]:
        """Return the next records, about `limit_bytes` of them; none at the end, or while a new epoch is starting.

        A version of many ranks comes with all its shard records, or not yet. Raises GapError when what follows is not a
        child of the last version or the folder holds another log by now, and CorruptRecordError at corrupt bytes that
        no newer segment follows. Good records before either come first.
        """
        # 1. list first: a file that has a successor in the listing is complete when it is read
        listing = self._directory.scan()
        if self._current is not None and not listing.claimed_epoch:
            raise GapError(f"the log's folder {self._directory.path} is empty or gone")
        if not listing.is_settled:
            return []
        current = self._directory.current_manifest(listing)
        assert current is not None
        if self._current is not None and self._current.is_replaced_by(current):
            raise GapError(f"the log in {self._directory.path} was deleted and re-created")
        self._current, manifest = current, current.manifest
        files = self._directory.readable_segments(listing, manifest)
        # 2. read
        records: list[Record] = []
        error: Exception | None = None
        try:
            position = self._read(files, limit_bytes, records)
            if not records:
                self._check_not_deleted(listing.valid_bases(manifest))
        except (GapError, CorruptRecordError) as broken:
            error = broken
        # 3. look again: a new trainer may have measured these files before our records were in them; then they are void
        if self._directory.is_fenced(manifest.epoch):
            return []
        # 4. use
        if error and not records:
            raise error
        self._position = position if error is None else _Position(records[-1].head, None, 0)
        return records

    def _read(self, files: list[tuple[str, int | None]], limit_bytes: int, records: list[Record]) -> _Position:
        """Append the next records to `records`, also before an error, and return the position behind them."""
        head, name, offset = self._position
        names = [file for file, _ in files]
        if name not in names:
            name, offset = self._find_file(files), 0
        if name is None:
            return self._position
        num_bytes = 0
        for file, limit in files[names.index(name) :]:
            if file != name:
                name, offset = file, 0
            elif limit is not None and offset > limit:
                raise GapError(f"{file} was read beyond its seal")
            while num_bytes < limit_bytes:
                try:
                    found = self._next(file, offset, limit, head)
                except _ShardMissingError:
                    return _Position(head, file, offset)
                except _ShardDamagedError:
                    raise
                except CorruptRecordError:
                    # after a failed append the trainer goes on in a new file, whose first record shows a gap, if any
                    if file != names[-1]:
                        break
                    raise
                if found is None:
                    break
                record, offset = found
                if record is None:
                    continue
                records.append(record)
                head = record.head
                num_bytes += record.num_bytes
            if num_bytes >= limit_bytes:
                break
        return _Position(head, name, offset)

    def _next(self, file: str, offset: int, limit: int | None, head: Head | None) -> tuple[Record | None, int] | None:
        """Return the record at an offset (None if it is not after `head`) and its end; None at the end of the file."""
        frame = self._frame(file, offset, limit)
        if frame is None:
            return None
        if head is not None and frame.header.number <= head.number:
            if frame.header.number == head.number and frame.header.head != head:
                raise GapError(f"the log holds another version {head}")
            return None, frame.end
        record = frame.read(self._descriptor(file))
        if head is not None and record.parent != head.checksum:
            raise GapError(f"version {record.head} does not follow {head}")
        try:
            whole = self._shards.complete(record, self._choice)
        except CorruptRecordError as error:
            raise _ShardDamagedError(str(error)) from None
        if whole is None:
            raise _ShardMissingError
        return whole, frame.end

    def _frame(self, file: str, offset: int, limit: int | None) -> Frame | None:
        try:
            descriptor = self._descriptor(file)
        except FileNotFoundError:  # retention deleted it since the listing
            return None
        size = os.fstat(descriptor).st_size
        return frame_at(descriptor, self._directory.path / file, offset, size if limit is None else min(size, limit))

    def _find_file(self, files: list[tuple[str, int | None]]) -> str | None:
        """Return the last file whose first record is not after the cursor's version, else the first file."""
        if self._position.head is not None:
            for file, limit in reversed(files):
                try:
                    first = self._frame(file, 0, limit)
                except CorruptRecordError:
                    continue
                if first is not None and first.header.number <= self._position.head.number:
                    return file
        return files[0][0] if files else None

    def _check_not_deleted(self, bases: list[int]) -> None:
        """Raise GapError if no child will come: the records up to the newest base were deleted, or the base begins
        another schema."""
        head = self._position.head
        if head is not None and bases and bases[-1] > head.number:
            raise GapError(f"the records after version {head} were deleted: start again from the newest base")

    def _descriptor(self, file: str) -> int:
        if self._open_file is None or self._open_file[0] != file:
            self.close()
            self._open_file = file, os.open(self._directory.path / file, os.O_RDONLY | os.O_CLOEXEC)
        return self._open_file[1]

    def close(self) -> None:
        """Close the open file. The next `read` opens it again."""
        if self._open_file is not None:
            os.close(self._open_file[1])
            self._open_file = None

    def __enter__(self) -> "LogCursor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
