"""The index of a log: every version by its record header, the names people give it, and which follow without a gap."""

from bisect import bisect, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal, NamedTuple

from springtide.app.errors import UserError
from springtide.app.version_log.kept_versions import Pin, read_pin, read_pins
from springtide.app.version_log.read.index_entry import IndexEntry, ShardCounts, deleted_meanwhile
from springtide_client.errors import LogError
from springtide_client.format.records import EPOCH_SHIFT, Head, RecordHeader, VersionMeta, version_name
from springtide_client.log.base import Base, BaseManifest, read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import Listing, base_name, begins_epoch
from springtide_client.log.shard_files import ShardFiles

MAX_LENGTH = 4_000  # of a name, below the number of digits that Python converts
CLOCKS: dict[str, Literal["created_ms", "event_clock_ms"]] = {"": "created_ms", "event": "event_clock_ms"}


class Instant(NamedTuple):
    """A time on one of a version's clocks: when it was written, or how far event time had come."""

    clock: Literal["created_ms", "event_clock_ms"]
    ms: int


def parse_instant(name: str) -> Instant | None:
    """Return the instant in `@TIME` or `event@TIME`; None for a name without @. UserError if it is malformed.

    TIME is ISO 8601, in UTC unless it has an offset.
    """
    clock, at, text = name.partition("@")
    if not at:
        return None
    try:
        time = datetime.fromisoformat(text)
        if clock not in CLOCKS:
            raise ValueError(clock)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return Instant(CLOCKS[clock], round(time.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UserError(f"version {name!r}: write @2026-11-21T10:00Z or event@2026-11-21T10:00Z") from None


def parse_version(name: str) -> int:
    """Return the number that a name means; at most 0: counted back from the latest. UserError if it is malformed."""
    if len(name) > MAX_LENGTH:
        raise UserError(f"version {name[:20]!r}...: a version's name has at most {MAX_LENGTH:,} characters")
    epoch, dot, count = name.partition(".")
    if name in ("latest", "oldest"):
        return 0
    if epoch.isascii() and epoch.isdecimal() and (count.isascii() and count.isdecimal() if dot else True):
        version = (int(epoch) << EPOCH_SHIFT) + int(count) if dot else int(epoch)
        if version > 0:
            return version
    if name.startswith("-") and name[1:].isascii() and name[1:].isdecimal():
        return int(name)
    raise UserError(
        f"version {name!r}: no pin has this name; write latest, oldest, -3 (three before "
        "the latest), 3.1207, its number, @2026-11-21T10:00Z or event@2026-11-21T10:00Z"
    )


class UnbrokenRuns:
    """Which versions of an index follow one another without a gap, by the checksums that link them.

    A version can be rebuilt if a base at or before it is in its run.
    """

    def __init__(self, headers: Mapping[int, RecordHeader], bases: Mapping[int, Head | None]) -> None:
        """`headers`: of the records by number. `bases`: the head of each base by number, None if it cannot be read."""
        self._run: dict[int, int] = {}
        self._bases: list[int] = sorted(version for version, head in bases.items() if head is not None)
        run, head = 0, None
        for version in sorted({*headers, *bases}):
            header = headers.get(version)
            if header is None:
                run, head = run + 1, bases[version]
            else:
                run += head is None or header.parent != head.checksum
                head = header.head
            self._run[version] = run

    def are_connected(self, older: int, newer: int) -> bool:
        """Return True if every version between two versions of the index is in it."""
        run = self._run.get(older)
        return run is not None and run == self._run.get(newer)

    def base_of(self, version: int) -> int | None:
        """Return the newest base from which a version can be rebuilt; None if there is none."""
        return next(iter(self.bases_of(version)), None)

    def bases_of(self, version: int) -> Sequence[int]:
        """Return the bases from which a version can be rebuilt, the newest first."""
        below = self._bases[: bisect_right(self._bases, version)]
        return [base for base in reversed(below) if self.are_connected(base, version)]

    def starts(self) -> list[int]:
        """Return the oldest base of each run that has one, oldest first."""
        first: dict[int, int] = {}
        for base in self._bases:
            first.setdefault(self._run[base], base)
        return list(first.values())

    def end_of(self, version: int) -> int:
        """Return the newest version of the run that a version is in."""
        run = self._run[version]
        return max(other for other, its in self._run.items() if its == run)


class LogIndex:
    """The bases and records that belong to the log, as of the moment the index was made."""

    def __init__(self, directory: LogDirectory) -> None:
        """UserError if the folder holds no log."""
        self.directory = directory
        listing = directory.scan()
        manifest = directory.manifest(listing)
        if manifest is None:
            raise UserError(f"there is no log in {directory.path} yet: `springtide run` starts one")
        self.manifest = manifest
        self.bases = listing.valid_bases(manifest)
        # versions with which the log, or a changed schema, begins: no chain of records leads across one
        self.begins = sorted({*filter(begins_epoch, self.bases), *manifest.begins})
        # a trainer that is starting, or died while starting: followers wait until it has sealed; 0: none
        self.unsealed_epoch = 0 if listing.is_settled else listing.claimed_epoch
        self.entries = list(self._whole_entries(listing))
        self._by_number = {entry.number: entry for entry in self.entries}
        self.numbers = sorted({*self._by_number, *self.bases})
        if not self.numbers:
            raise UserError(f"the log {directory.path} holds no version yet: `springtide train` writes the first")

    def _whole_entries(self, listing: Listing) -> Iterator[IndexEntry]:
        """Yield the versions in order. Of many ranks' versions those of which a shard record is missing are left out:
        below the newest base retention may have deleted it; above, the log ends there for now."""
        shards, found = ShardFiles(self.directory.path), ShardCounts.of(self.directory.path, listing)
        newest_base, last = max(self.bases, default=0), -1
        for name, limit in self.directory.readable_segments(listing, self.manifest):
            for frame in sound_frames(self.directory.path / name, limit):
                version = frame.header.number
                if version <= last:
                    continue
                entry, last = IndexEntry(frame, shards, found.num_bytes[version]), version
                if found.num_ranks[version] >= found.num_needed(entry):
                    yield entry
                elif version > newest_base:
                    return

    def find(self, version: int) -> IndexEntry | None:
        """Return the record of a version; None if only a base is left of it."""
        return self._by_number.get(version)

    def resolve(self, name: str) -> int:
        """Return the number of a version named `latest`, `oldest`, `-N`, `epoch.count`, by its number, pin or time.

        `oldest` is the oldest that can still be rebuilt; `@TIME` and `event@TIME` are the newest at or before an
        instant of wall time or event time that can be. UserError if there is no such version.
        """
        if (instant := parse_instant(name)) is not None:
            return self._newest_at(instant, name)
        if (pin := read_pin(self.directory.path, name)) is not None:
            version = pin.version
        else:
            version = parse_version(name)
        if name == "oldest":
            return self.bases[0] if self.bases else self.numbers[0]
        if version <= 0:
            if -version >= len(self.numbers):
                raise UserError(f"version {name}: the log holds only {len(self.numbers)} versions; {self._range()}")
            return self.numbers[version - 1]
        if version not in self._by_number and version not in self.bases:
            shown = version_name(version) if version >= 1 << EPOCH_SHIFT else name
            raise UserError(
                f"version {shown} is not in the log: {self._range()}; `springtide versions list` shows them"
            )
        return version

    def _newest_at(self, instant: Instant, name: str) -> int:
        """Return the newest version that can be rebuilt whose clock had not passed the instant."""
        for version in reversed(self.numbers):
            if self.is_restorable(version) and self._clock_of(version, instant.clock) <= instant.ms:
                return version
        raise UserError(f"version {name}: every version that can be rebuilt is newer; {self._range()}")

    def _clock_of(self, version: int, clock: str) -> int:
        time_ms: int = getattr(self.meta(version), clock)
        if not time_ms and clock == "created_ms":  # the first base of a log is no written version
            return self._manifest_of(version).created_ms
        return time_ms

    @cached_property
    def pins(self) -> list[Pin]:
        """The pinned versions, the oldest first; LogError if a pin cannot be read."""
        return read_pins(self.directory.path)

    @cached_property
    def runs(self) -> UnbrokenRuns:
        """Which versions follow one another without a gap."""
        headers = {version: entry.header for version, entry in self._by_number.items()}
        return UnbrokenRuns(headers, {version: self._head_of_base(version) for version in self.bases})

    def is_restorable(self, version: int) -> bool:
        """Return True if a version can be rebuilt: a base is at or before it, and all versions between them are there.

        The files of the base are not checked.
        """
        return self.runs.base_of(version) is not None

    def head(self, version: int) -> Head:
        """Return a version's number and checksum."""
        entry = self.find(version)
        return entry.head if entry else self._manifest_of(version).head

    def meta(self, version: int) -> VersionMeta:
        """Return a version's meta."""
        entry = self.find(version)
        return entry.read_summary().meta if entry else self._manifest_of(version).meta

    def entries_between(self, after: int, last: int) -> list[IndexEntry]:
        """Return the records after one version up to and including another."""
        return [entry for entry in self.entries if after < entry.number <= last]

    def begin_of(self, version: int) -> int:
        """Return the version with which the schema of a version began; 0 where it is not known any more."""
        return max((begin for begin in self.begins if begin <= version), default=0)

    def base_before(self, version: int) -> Base:
        """Open the newest base from which a version can be rebuilt; UserError names versions that can be."""
        failure: LogError | None = None
        for base in self.runs.bases_of(version):
            try:
                return Base.open(self.directory.path / base_name(base))
            except LogError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        gone = f"version {version_name(version)} can no longer be rebuilt"
        if not self.bases or self.bases[0] > version:
            oldest = f"the oldest that can be is {version_name(self.bases[0])}" if self.bases else "there is no base"
            raise UserError(f"{gone}, its base was deleted: {oldest}")
        at = bisect(self.numbers, version)
        near = [next(filter(self.is_restorable, side), None) for side in (self.numbers[:at][::-1], self.numbers[at:])]
        names = " and ".join(version_name(found) for found in near if found is not None)
        raise UserError(f"{gone}, versions before it were deleted: the nearest that can be: {names}")

    def _head_of_base(self, version: int) -> Head | None:
        """Return the version that a base holds; None if its manifest cannot be read."""
        try:
            return read_base_manifest(self.directory.path / base_name(version)).head
        except (LogError, OSError):
            return None

    def _manifest_of(self, version: int) -> BaseManifest:
        name = base_name(version)
        try:
            return read_base_manifest(self.directory.path / name)
        except FileNotFoundError:
            raise deleted_meanwhile(name) from None

    def _range(self) -> str:
        return f"it goes from {version_name(self.numbers[0])} to {version_name(self.numbers[-1])}"
