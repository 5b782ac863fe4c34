"""The log as a folder, read only: which epoch rules, which bases and segments there are. Written by app.version_log."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import decode_checksummed_json
from springtide_client.format.records import Record, Tip
from springtide_client.log.base import Base
from springtide_client.log.cursor import LogCursor
from springtide_client.schema import Schema

_NAMES = {
    "claim": re.compile(r"epoch-(\d{10})\.claim"),
    "manifest": re.compile(r"manifest-(\d{10})\.json"),
    "base": re.compile(r"base-(\d{20})"),
    "segment": re.compile(r"seg-(\d{10})-(\d{6})\.log"),
}


class SealedSegment(msgspec.Struct, frozen=True):
    """A segment of an older epoch, and how many of its bytes count."""

    file: str
    bytes: int


class LogManifest(msgspec.Struct, kw_only=True):
    """What an epoch makes of the past."""

    epoch: int
    sealed: list[SealedSegment]  # in order; one that is missing was retired
    base: Tip | None  # the newest at its start; None in a new log
    tip: Tip | None  # where the past ends
    schema: dict[str, Any]
    fingerprint: str

    def decode_schema(self) -> Schema:
        """The schema that the epoch writes with."""
        return Schema.from_json(msgspec.json.encode(self.schema))


class CurrentManifest(NamedTuple):
    """The manifest that rules, and when it was written."""

    manifest: LogManifest
    written_ns: int

    def is_replaced_by(self, later: "CurrentManifest") -> bool:
        """Whether what is seen later cannot be of the same log."""
        is_same_epoch = later.manifest.epoch == self.manifest.epoch
        return later.manifest.epoch < self.manifest.epoch or (is_same_epoch and later.written_ns != self.written_ns)


class Listing(NamedTuple):
    """The names in a log's folder at one instant."""

    claimed_epoch: int  # the highest epoch that anyone claimed; 0: none
    manifest_epoch: int  # the highest epoch that has a manifest; 0: none
    bases: list[int]  # their numbers, ascending
    segments: dict[int, list[str]]  # by epoch, in order

    @property
    def is_settled(self) -> bool:
        """Whether the newest manifest rules: no epoch above it is claimed."""
        return 0 < self.claimed_epoch == self.manifest_epoch


def claim_name(epoch: int) -> str:
    return f"epoch-{epoch:010d}.claim"


def manifest_name(epoch: int) -> str:
    return f"manifest-{epoch:010d}.json"


def segment_name(epoch: int, count: int) -> str:
    return f"seg-{epoch:010d}-{count:06d}.log"


def base_name(number: int) -> str:
    return f"base-{number:020d}"


class LogDirectory:
    """A log's folder. Every method looks afresh; nothing is changed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._ruling: CurrentManifest | None = None  # a manifest never changes, unless the log is made anew

    def scan(self) -> Listing:
        """What is there; an empty listing where the folder is missing."""
        claims, manifests, bases = [0], [0], []
        segments: dict[int, list[str]] = {}
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            names = []
        for name in sorted(names):
            if match := _NAMES["segment"].fullmatch(name):
                segments.setdefault(int(match[1]), []).append(name)
            elif match := _NAMES["base"].fullmatch(name):
                bases.append(int(match[1]))
            elif match := _NAMES["claim"].fullmatch(name):
                claims.append(int(match[1]))
            elif match := _NAMES["manifest"].fullmatch(name):
                manifests.append(int(match[1]))
        # whoever has a manifest had claimed: a claim that somebody removed must not be taken again
        return Listing(max(*claims, *manifests), max(manifests), bases, segments)

    def manifest(self, listing: Listing | None = None) -> LogManifest | None:
        """The newest manifest, also while a higher epoch is claimed; None in a log without one."""
        ruling = self.current_manifest(listing or self.scan())
        return None if ruling is None else ruling.manifest

    def current_manifest(self, listing: Listing) -> "CurrentManifest | None":
        """The newest manifest, and what tells it from one that was written in its place."""
        epoch, known = listing.manifest_epoch, self._ruling
        if not epoch:
            return None
        path = self.path / manifest_name(epoch)
        written_ns = path.stat().st_mtime_ns
        if known is None or (known.manifest.epoch, known.written_ns) != (epoch, written_ns):
            known = CurrentManifest(decode_checksummed_json(path.read_bytes(), LogManifest, str(path)), written_ns)
            self._ruling = known
        return known

    def is_fenced(self, epoch: int) -> bool:
        """Whether an epoch above this one is claimed. Claims are made one after the other and never removed."""
        return os.path.exists(self.path / claim_name(epoch + 1))

    def readable_segments(self, listing: Listing, manifest: LogManifest) -> list[tuple[str, int | None]]:
        """The segments that count, in order, each with the bytes that count (None: all)."""
        own: list[tuple[str, int | None]] = [(name, None) for name in listing.segments.get(manifest.epoch, [])]
        present = {name for names in listing.segments.values() for name in names}
        return [(sealed.file, sealed.bytes) for sealed in manifest.sealed if sealed.file in present] + own

    def bases(self) -> list[Path]:
        """The bases, oldest first."""
        return [self.path / base_name(number) for number in self.scan().bases]

    def newest_base(self) -> Path | None:
        """The newest base; it may be retired before it is opened: see `open_base`."""
        return next(reversed(self.bases()), None)

    def bases_before(self, than: Path) -> list[Path]:
        """The bases before this one, newest first."""
        return [path for path in reversed(self.bases()) if path.name < than.name]

    def local_base(self) -> Path | None:
        """The newest base: in a folder all of them have arrived."""
        return self.newest_base()

    def open_base(self) -> Base | None:
        """The newest base that can be opened; None in a log without bases; LogError where none is readable."""
        error: LogError | None = None
        for path in reversed(self.bases()):
            try:
                return Base.open(path)
            except LogError as damaged:
                error = error or damaged
        if error:
            raise error
        return None

    def follow(self, after: Tip | None) -> LogCursor:
        """A cursor that reads on from a place, again and again."""
        return LogCursor(self, after)

    def records(self, after: Tip | None) -> Iterator[Record]:
        """The records after a place (None: from the oldest that is left) up to the current end.

        Raises GapError where the log does not go on from there, CorruptRecordError at damaged bytes.
        """
        with self.follow(after) as cursor:
            while records := cursor.read():
                yield from records
