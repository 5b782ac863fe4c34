"""The names of the files in a log's folder, and what an epoch's manifest says about the segments before it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from springtide_client.format.records import EPOCH_SHIFT, Head
from springtide_client.schema import Schema

_CLAIM = re.compile(r"epoch-(\d{10})\.claim")
_MANIFEST = re.compile(r"manifest-(\d{10})\.json")
_BASE = re.compile(r"base-(\d{20})")
_SEGMENT = re.compile(r"seg-(\d{10})-(\d{6})\.log")
_SHARD_SEGMENT = re.compile(r"seg-(\d{10})-(\d{5})-(\d{6})\.log")


def claim_name(epoch: int) -> str:
    return f"epoch-{epoch:010d}.claim"


def manifest_name(epoch: int) -> str:
    return f"manifest-{epoch:010d}.json"


def segment_name(epoch: int, count: int) -> str:
    return f"seg-{epoch:010d}-{count:06d}.log"


def shard_segment_name(epoch: int, rank: int, count: int) -> str:
    """Return a file of the shard records that one rank of an epoch writes; rank 0 writes the segments."""
    return f"seg-{epoch:010d}-{rank:05d}-{count:06d}.log"


def base_name(number: int) -> str:
    return f"base-{number:020d}"


def state_name(number: int) -> str:
    """Return the folder of the exact state at a version."""
    return f"state-{number:020d}"


def base_number(base_path: Path) -> int:
    """Return the version that a base equals, from the name of its folder."""
    return int(base_path.name.removeprefix("base-"))


def begins_epoch(number: int) -> bool:
    """Return True for a version with which an epoch begins: a base that equals no record."""
    return number % (1 << EPOCH_SHIFT) == 0


class SealedSegment(msgspec.Struct, frozen=True):
    """A segment of an older epoch, and how many of its bytes are valid."""

    file: str
    bytes: int


class LogManifest(msgspec.Struct, kw_only=True):
    """The log as an epoch's trainer found it when it started. Written once, never changed."""

    epoch: int
    sealed: list[SealedSegment]  # in order; one that is missing from the folder was deleted by retention
    base: Head | None  # the newest base at the start; None in a new log
    head: Head | None = msgspec.field(name="tip")  # the last version of the older epochs
    schema: dict[str, Any]
    fingerprint: str  # of the schema
    begins: list[int] = []  # the bases of older epochs that equal no record: of a new log, or of a changed schema

    def decode_schema(self) -> Schema:
        """Return the schema that the epoch writes with."""
        return Schema.from_json(msgspec.json.encode(self.schema))


class CurrentManifest(NamedTuple):
    """The newest manifest, and when it was written."""

    manifest: LogManifest
    written_ns: int

    def is_replaced_by(self, later: "CurrentManifest") -> bool:
        """Return True if `later`, which was read later, belongs to another log: this one was deleted and re-created."""
        is_same_epoch = later.manifest.epoch == self.manifest.epoch
        return later.manifest.epoch < self.manifest.epoch or (is_same_epoch and later.written_ns != self.written_ns)


class Listing(NamedTuple):
    """The names in a log's folder at one instant."""

    claimed_epoch: int  # the highest epoch that was claimed; 0: none
    manifest_epoch: int  # the highest epoch that has a manifest; 0: none
    bases: list[int]  # their version numbers, ascending
    segments: dict[int, list[str]]  # by epoch, in order
    shards: dict[tuple[int, int], list[str]]  # files of shard records by epoch and rank, in order

    @staticmethod
    def of(names: Sequence[str]) -> "Listing":
        """Sort the names of a folder; names of other files are ignored."""
        claims, manifests, bases = [0], [0], []
        segments: dict[int, list[str]] = {}
        shards: dict[tuple[int, int], list[str]] = {}
        for name in sorted(names):
            if match := _SEGMENT.fullmatch(name):
                segments.setdefault(int(match[1]), []).append(name)
            elif match := _SHARD_SEGMENT.fullmatch(name):
                shards.setdefault((int(match[1]), int(match[2])), []).append(name)
            elif match := _BASE.fullmatch(name):
                bases.append(int(match[1]))
            elif match := _CLAIM.fullmatch(name):
                claims.append(int(match[1]))
            elif match := _MANIFEST.fullmatch(name):
                manifests.append(int(match[1]))
        # a manifest implies a claim: an epoch whose claim file was deleted must not be claimed a second time
        return Listing(max(*claims, *manifests), max(manifests), bases, segments, shards)

    def valid_bases(self, manifest: LogManifest | None) -> list[int]:
        """Return the bases that belong to the log: not those with which a replaced trainer meant to begin."""
        if manifest is None:
            return self.bases
        known = {manifest.epoch << EPOCH_SHIFT, *manifest.begins}
        return [number for number in self.bases if not begins_epoch(number) or number in known]

    @property
    def record_files(self) -> list[tuple[int, str]]:
        """The files of version records and of shard records, each with its epoch."""
        files = [*self.segments.items(), *((epoch, names) for (epoch, _), names in self.shards.items())]
        return [(epoch, name) for epoch, names in files for name in names]

    @property
    def is_settled(self) -> bool:
        """True when the newest epoch has its manifest, so that no trainer is just starting."""
        return 0 < self.claimed_epoch == self.manifest_epoch


class SegmentDirectory(Protocol):
    """A log's folder as a cursor needs it; LogDirectory says what each method returns."""

    path: Path

    def scan(self) -> Listing: ...

    def current_manifest(self, listing: Listing) -> CurrentManifest | None: ...

    def readable_segments(self, listing: Listing, manifest: LogManifest) -> list[tuple[str, int | None]]: ...

    def is_fenced(self, epoch: int) -> bool: ...
