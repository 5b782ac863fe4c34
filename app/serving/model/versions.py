"""The versions that this server has applied, without their tensors, and those of the log by the names in requests."""

import threading
import zlib
from bisect import bisect_left
from pathlib import Path
from typing import Any

import msgspec

from springtide.app.errors import UserError
from springtide.app.serving.http.errors import ApiError, gone, invalid, not_ready
from springtide.app.version_log.kept_versions import Pin, is_pin_name, read_pins
from springtide.app.version_log.read.index import MAX_LENGTH, LogIndex, parse_instant, parse_version
from springtide_client.errors import LogError
from springtide_client.follow.follower import AppliedVersion
from springtide_client.format.records import EPOCH_SHIFT, CommandEntry, StreamPosition, version_name
from springtide_client.log.directory import LogDirectory

MAX_VERSIONS = 100_000


class VersionResponse(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A version's manifest; checksums are hexadecimal strings, because JSON numbers lose digits."""

    version: int
    name: str
    epoch: int
    count: int
    parent: str
    checksum: str
    created_ms: int
    complete_until_ms: int
    samples_trained: int
    step: int
    positions: dict[str, StreamPosition]
    event_clock_ms: int
    expiry_cutoffs: dict[str, int]
    admission: dict[str, int]
    sketch_blocks: int
    sketch_age: int
    fingerprint: str
    scores: dict[str, Any]
    dead_letters: dict[str, int]
    executed_commands: list[CommandEntry]
    restores: int
    exact_state: int
    durable: int
    change: dict[str, Any]
    pins: list[str] | msgspec.UnsetType = msgspec.UNSET

    @staticmethod
    def of(version: AppliedVersion, pins: list[str] | msgspec.UnsetType = msgspec.UNSET) -> "VersionResponse":
        """The manifest of a version, and the names by which it is kept."""
        number, meta = version.number, version.meta
        shared = {name: getattr(meta, name) for name in VersionResponse.__struct_fields__ if hasattr(meta, name)}
        return VersionResponse(
            version=number,
            name=version_name(number),
            epoch=number >> EPOCH_SHIFT,
            count=number & ((1 << EPOCH_SHIFT) - 1),
            parent=f"{version.parent:016x}",
            checksum=f"{version.checksum:016x}",
            pins=pins,
            **shared,
        )


class VersionIndex:
    """The newest versions in order. The following thread adds, any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[AppliedVersion] = []
        self._by_number: dict[int, AppliedVersion] = {}

    def add(self, entry: AppliedVersion) -> None:
        """Add an applied version, without what only the next trainer reads.

        One that is not newer than the last replaces every version from its number on: the follower restarted from a
        base.
        """
        with self._lock:
            known = self._by_number.get(entry.number)
            if known is not None and known.checksum == entry.checksum:
                return
            if self._entries and entry.number <= self._entries[-1].number:
                self._entries = [known for known in self._entries if known.number < entry.number]
            entry = entry._replace(meta=msgspec.structs.replace(entry.meta, trainer={}, record_ms=[]))
            self._entries.append(entry)
            if len(self._entries) > MAX_VERSIONS:
                del self._entries[: MAX_VERSIONS // 10]
            if len(self._entries) != len(self._by_number) + 1:
                self._by_number = {known.number: known for known in self._entries}
            self._by_number[entry.number] = entry

    def find(self, number: int) -> AppliedVersion | None:
        """The version of that number, or None."""
        with self._lock:
            return self._by_number.get(number)

    @property
    def oldest(self) -> int | None:
        """The oldest version number in the index, or None."""
        with self._lock:
            return self._entries[0].number if self._entries else None

    def newest(self, *, limit: int, before: int | None = None) -> list[AppliedVersion]:
        """Up to `limit` versions, newest first, all below `before`."""
        with self._lock:
            end = len(self._entries)
            if before is not None:
                end = bisect_left(self._entries, before, key=lambda entry: entry.number)
            return self._entries[max(0, end - limit) : end][::-1]


MAX_NAME = 80


def resolve_version(log_path: Path, name: str) -> int:
    """Return the number of a version; a number needs no log. ApiError 422 for no name, 410 for none in the log."""
    if name.isascii() and name.isdecimal() and len(name) < 20:
        return int(name)
    try:
        if len(name) > MAX_NAME or (parse_instant(name) is None and not is_pin_name(name)):
            parse_version(name if len(name) > MAX_LENGTH else name[:MAX_NAME])
    except UserError as error:
        raise invalid(str(error), "/v1/versions lists versions and pins") from None
    try:
        return LogIndex(LogDirectory(log_path)).resolve(name)
    except UserError as error:
        raise ApiError(410, "gone", str(error), "see /v1/versions") from None
    except LogError as error:
        raise not_ready(str(error)) from None


def version_of_log(log_path: Path, number: int) -> AppliedVersion:
    """Return a version that the log still has, by its record or its base; ApiError 410 if it has not."""
    try:
        index = LogIndex(LogDirectory(log_path))
        if number not in index.numbers:
            raise gone(number, index.numbers[0])
        found = index.find(number)
        parent = 0 if found is None else found.header.parent
        return AppliedVersion(number, parent, index.head(number).checksum, index.meta(number))
    except (UserError, LogError, FileNotFoundError):
        raise gone(number, None) from None


def pins_of(log_path: Path) -> list[Pin]:
    """Return the pins; ApiError 503 if one cannot be read."""
    try:
        return read_pins(log_path)
    except LogError as error:
        raise not_ready(str(error)) from None


def pins_tag(pins: list[Pin]) -> str:
    """Return what an ETag needs to change with the pins; empty without pins."""
    return f"-{zlib.crc32(repr(pins).encode()):x}" if pins else ""
