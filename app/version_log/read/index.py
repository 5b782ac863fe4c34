"""The versions that a log holds, by their headers alone: where each stands, which one a name means, what reaches it."""

import os
from pathlib import Path
from typing import NamedTuple

import msgspec
from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.records import EPOCH_SHIFT, HEADER, Record, RecordHeader, Tip, VersionMeta, version_name
from springtide_client.log.base import Base, BaseManifest, read_base_manifest
from springtide_client.log.directory import LogDirectory, base_name

from app.errors import UserError
from app.version_log.read.segments import scan_segment

LENGTH_BYTES = 8  # before the JSON header of a payload


class _Shape(msgspec.Struct):
    shape: tuple[int, ...]


class RecordHead(NamedTuple):
    """What a record says before its tensors' bytes; read alone, it is not verified."""

    meta: VersionMeta
    shapes: dict[str, tuple[int, ...]]

    @property
    def num_rows(self) -> int:
        """Rows that the version writes."""
        return self.shapes.get("rows.id", (0,))[0]

    @property
    def num_forgotten(self) -> int:
        """Keys that it forgets."""
        return self.shapes.get("forgotten.id", (0,))[0]


class IndexEntry(NamedTuple):
    """A record and its place."""

    header: RecordHeader
    path: Path
    offset: int

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def tip(self) -> Tip:
        return self.header.tip

    @property
    def num_bytes(self) -> int:
        return HEADER.size + self.header.length

    def read_head(self) -> RecordHead:
        """Meta and shapes; LogError where they cannot be read."""
        length = int.from_bytes(self._read(LENGTH_BYTES, 0), "little")
        if length > self.header.length - LENGTH_BYTES:
            raise CorruptRecordError(self._damage())
        try:
            return parse_record_head(self._read(length, LENGTH_BYTES))
        except (KeyError, msgspec.MsgspecError):
            raise CorruptRecordError(self._damage()) from None

    def read(self) -> Record:
        """The whole record, verified; LogError."""
        return Record.verify_payload(self.header, self._read(self.header.length, 0))

    def _read(self, length: int, start: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                return os.pread(file.fileno(), length, self.offset + HEADER.size + start)
        except FileNotFoundError:
            raise LogError(f"{self.path.name} was retired while it was read: run the command again") from None

    def _damage(self) -> str:
        where = f"{self.path.name} at {self.offset:,}"
        return f"{where}: version {self.tip} is damaged: `springtide versions verify` tells more"


def parse_record_head(text: bytes) -> RecordHead:
    """From the JSON header of a payload; KeyError or MsgspecError where it is none."""
    entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(entries.pop("__metadata__"), type=dict[str, str])
    meta = msgspec.json.decode(metadata["version"], type=VersionMeta)
    return RecordHead(meta, {name: msgspec.json.decode(raw, type=_Shape).shape for name, raw in entries.items()})


class LogIndex:
    """The bases and the records that count, as they were when it was made."""

    def __init__(self, directory: LogDirectory) -> None:
        """UserError where there is no log."""
        self.directory = directory
        listing = directory.scan()
        manifest = directory.manifest(listing)
        if manifest is None:
            raise UserError(f"there is no log in {directory.path} yet: `springtide run` begins one")
        self.manifest = manifest
        self.bases = listing.bases
        # a trainer that starts, or one that died starting: until it seals, followers wait
        self.unsealed_epoch = 0 if listing.is_settled else listing.claimed_epoch
        self.entries: list[IndexEntry] = []
        for name, limit in directory.readable_segments(listing, manifest):
            path = directory.path / name
            for header, end in scan_segment(path, limit, verify_after=2**63):
                if not self.entries or header.number > self.entries[-1].number:
                    self.entries.append(IndexEntry(header, path, end - header.length - HEADER.size))
        self._by_number = {entry.number: entry for entry in self.entries}
        self.numbers = sorted({*self._by_number, *self.bases})
        if not self.numbers:
            raise UserError(f"the log {directory.path} holds no version yet: `springtide train` makes the first")

    def find(self, number: int) -> IndexEntry | None:
        """The record of a version; None where only a base is left of it."""
        return self._by_number.get(number)

    def resolve(self, name: str) -> int:
        """The number of a version named `latest`, `oldest` (that can be built), `-N`, `epoch.count`, or by its number.

        UserError where there is none.
        """
        number = parse_version(name)
        if name == "oldest":
            return self.bases[0] if self.bases else self.numbers[0]
        if number <= 0:
            if -number >= len(self.numbers):
                raise UserError(f"version {name}: the log holds only {len(self.numbers)} versions; {self._range()}")
            return self.numbers[number - 1]
        if number not in self._by_number and number not in self.bases:
            asked = version_name(number) if number >= 1 << EPOCH_SHIFT else name
            raise UserError(
                f"version {asked} is not in the log: {self._range()}; `springtide versions list` shows them"
            )
        return number

    def tip(self, number: int) -> Tip:
        """The place in the log that a version is."""
        entry = self.find(number)
        return entry.tip if entry else self._manifest_of(number).tip

    def meta(self, number: int) -> VersionMeta:
        """What the version says of the world."""
        entry = self.find(number)
        return entry.read_head().meta if entry else self._manifest_of(number).meta

    def entries_between(self, after: int, last: int) -> list[IndexEntry]:
        """The records behind a version up to another."""
        return [entry for entry in self.entries if after < entry.number <= last]

    def base_before(self, number: int) -> Base:
        """The newest base from which a version can be built; UserError names the oldest version that can be."""
        damaged: LogError | None = None
        for base in reversed(self.bases):
            if base > number:
                continue
            try:
                return Base.open(self.directory.path / base_name(base))
            except LogError as error:
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        oldest = f"the oldest that can is {version_name(self.bases[0])}" if self.bases else "there is no base"
        raise UserError(f"version {version_name(number)} can no longer be built, its base is retired: {oldest}")

    def _manifest_of(self, number: int) -> BaseManifest:
        name = base_name(number)
        try:
            return read_base_manifest(self.directory.path / name)
        except FileNotFoundError:
            raise LogError(f"{name} was retired while it was read: run the command again") from None

    def _range(self) -> str:
        return f"it goes from {version_name(self.numbers[0])} to {version_name(self.numbers[-1])}"


def parse_version(name: str) -> int:
    """The version's number, where it is at most 0 counted back from the latest; UserError for what is no version."""
    epoch, dot, count = name.partition(".")
    if name in ("latest", "oldest"):
        return 0
    if epoch.isascii() and epoch.isdecimal() and (count.isascii() and count.isdecimal() if dot else True):
        number = (int(epoch) << EPOCH_SHIFT) + int(count) if dot else int(epoch)
        if number > 0:
            return number
    if name.startswith("-") and name[1:].isascii() and name[1:].isdecimal():
        return int(name)
    raise UserError(f"version {name!r}: write latest, oldest, -3 (three before the latest), 3.1207 or its number")
