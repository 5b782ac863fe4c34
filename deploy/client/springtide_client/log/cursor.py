"""Reads records on from a place, by the rules for readers: seals count, parents must fit, look before use."""

import os
from typing import TYPE_CHECKING, NamedTuple

from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import HEADER, Record, RecordHeader, Tip, parse_header

if TYPE_CHECKING:
    from springtide_client.log.directory import CurrentManifest, Listing, LogDirectory

READ_BYTES = 64 << 20  # a read hands out about so much at most


class _Place(NamedTuple):
    tip: Tip | None  # the version last handed out
    file: str | None  # where the next record is looked for; None: not yet known
    offset: int


class LogCursor:
    """Stands behind a version and hands out what follows it. Not thread-safe.

    A follower's rule of life: apply what `read` gives; on GapError or CorruptRecordError start again from the newest
    base (serving the old view until the new one has caught up).
    """

    def __init__(self, directory: "LogDirectory", after: Tip | None) -> None:
        self._directory = directory
        self._place = _Place(after, None, 0)
        self._open: tuple[str, int] | None = None  # name and descriptor
        self._ruling: CurrentManifest | None = None  # what ruled when this was read last

    @property
    def tip(self) -> Tip | None:
        """The version last handed out; at first the place it was given."""
        return self._place.tip

    def read(self, limit_bytes: int = READ_BYTES) -> list[Record]:
        """The next records, about `limit_bytes` of them; none at the end, or while a new epoch is starting.

        Raises GapError where what follows does not fit onto the last version, or the folder holds another log by now,
        and CorruptRecordError at damaged bytes behind which nothing stands; good records before either are handed out
        first.
        """
        # 1. list first: a file that has a successor in the listing is complete when it is read
        listing = self._directory.scan()
        if self._ruling is not None and not listing.claimed_epoch:
            raise GapError(f"the log's folder {self._directory.path} is empty or gone")
        if not listing.is_settled:
            return []
        ruling = self._directory.current_manifest(listing)
        assert ruling is not None
        if self._ruling is not None and self._ruling.is_replaced_by(ruling):
            raise GapError(f"the log in {self._directory.path} was made anew")
        self._ruling, manifest = ruling, ruling.manifest
        files = self._directory.readable_segments(listing, manifest)
        # 2. read
        records: list[Record] = []
        error: Exception | None = None
        try:
            place = self._read(files, limit_bytes, records)
            if not records:
                self._look_for_gap(listing)
        except (GapError, CorruptRecordError) as broken:
            error = broken
        # 3. look: had a new trainer measured these files before our records were in them, they would not count
        if self._directory.is_fenced(manifest.epoch):
            return []
        # 4. use
        if error and not records:
            raise error
        self._place = place if error is None else _Place(records[-1].tip, None, 0)
        return records

    def _read(self, files: list[tuple[str, int | None]], limit_bytes: int, records: list[Record]) -> _Place:
        tip, name, offset = self._place
        names = [file for file, _ in files]
        if name not in names:
            name, offset = self._find_file(files), 0
        if name is None:
            return self._place
        taken = 0
        for file, limit in files[names.index(name) :]:
            if file != name:
                name, offset = file, 0
            elif limit is not None and offset > limit:
                raise GapError(f"{file} was read beyond its seal")
            while taken < limit_bytes:
                try:
                    found = self._next(file, offset, limit, tip)
                except CorruptRecordError:
                    # a failed append is followed by a new file, whose first record tells by its parent what is missing
                    if file != names[-1]:
                        break
                    raise
                if found is None:
                    break
                record, offset = found
                if record is None:
                    continue
                if tip is not None and record.parent != tip.checksum:
                    raise GapError(f"version {record.tip} does not follow {tip}")
                records.append(record)
                tip = record.tip
                taken += record.num_bytes
            if taken >= limit_bytes:
                break
        return _Place(tip, name, offset)

    def _next(self, file: str, offset: int, limit: int | None, tip: Tip | None) -> tuple[Record | None, int] | None:
        """The record at an offset (None where it is not after `tip`) and its end; None at the end of the file."""
        header = self._header(file, offset, limit)
        if header is None:
            return None
        start = offset + HEADER.size
        end = start + header.length
        if tip is not None and header.number <= tip.number:
            if header.number == tip.number and header.tip != tip:
                raise GapError(f"another version {tip} stands in the log")
            size = os.fstat(self._descriptor(file)).st_size
            return (None, end) if end <= (size if limit is None else limit) else None
        if limit is not None and end > limit:
            return None
        descriptor = self._descriptor(file)
        if os.fstat(descriptor).st_size < end:
            return None
        return Record.verify_payload(header, _read_fully(descriptor, header.length, start)), end

    def _header(self, file: str, offset: int, limit: int | None) -> RecordHeader | None:
        if limit is not None and offset + HEADER.size > limit:
            return None
        try:
            head = _read_fully(self._descriptor(file), HEADER.size, offset)
        except FileNotFoundError:  # retired meanwhile
            return None
        return parse_header(head) if len(head) == HEADER.size else None

    def _find_file(self, files: list[tuple[str, int | None]]) -> str | None:
        """The last file that begins at or before the place, else the first."""
        if self._place.tip is not None:
            for file, limit in reversed(files):
                try:
                    header = self._header(file, 0, limit)
                except CorruptRecordError:
                    continue
                if header is not None and header.number <= self._place.tip.number:
                    return file
        return files[0][0] if files else None

    def _look_for_gap(self, listing: "Listing") -> None:
        # all that led to the newest base was retired: nothing will ever follow the place
        tip = self._place.tip
        if tip is not None and listing.bases and listing.bases[-1] > tip.number:
            raise GapError(f"what followed version {tip} is retired: start again from the newest base")

    def _descriptor(self, file: str) -> int:
        if self._open is None or self._open[0] != file:
            self.close()
            self._open = file, os.open(self._directory.path / file, os.O_RDONLY | os.O_CLOEXEC)
        return self._open[1]

    def close(self) -> None:
        """Give the open file back; reading on opens it again."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def __enter__(self) -> "LogCursor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_fully(descriptor: int, length: int, offset: int) -> bytes:
    """The bytes; fewer only at the end of the file."""
    data = os.pread(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    while data and sum(map(len, pieces)) < length:
        data = os.pread(descriptor, length - sum(map(len, pieces)), offset + sum(map(len, pieces)))
        pieces.append(data)
    return b"".join(pieces)
