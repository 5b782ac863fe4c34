"""The versions that this server has applied: what each was, without its tensors."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from springtide_client.follow.listeners import AppliedVersion
from springtide_client.format.records import EPOCH_SHIFT, Tip, version_name

MAX_VERSIONS = 100_000
# of a version's meta, what only the next trainer reads
INTERNAL_META = ("trainer", "record_ms", "created_ms")


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version: its place in the log, and the metadata of its record."""

    number: int
    parent: int
    checksum: int
    created_ms: int
    record_ms: Sequence[int]
    meta: dict[str, Any]

    @staticmethod
    def of(applied: AppliedVersion) -> "VersionEntry":
        """The entry of a version that a follower has applied."""
        meta = msgspec.to_builtins(applied.meta)
        created_ms, record_ms = meta["created_ms"], meta["record_ms"]
        for name in INTERNAL_META:
            del meta[name]
        return VersionEntry(applied.number, applied.parent, applied.checksum, created_ms, record_ms, meta)

    @property
    def tip(self) -> Tip:
        return Tip(self.number, self.checksum)

    @property
    def etag(self) -> str:
        return f'"{self.checksum:016x}"'

    def document(self) -> dict[str, Any]:
        """The manifest of /v1/versions; checksums are hexadecimal strings because JSON numbers lose digits."""
        epoch, count = self.number >> EPOCH_SHIFT, self.number & ((1 << EPOCH_SHIFT) - 1)
        return {
            "version": self.number,
            "name": version_name(self.number),
            "epoch": epoch,
            "count": count,
            "parent": f"{self.parent:016x}",
            "checksum": f"{self.checksum:016x}",
            "created_ms": self.created_ms,
            **self.meta,
        }


class VersionIndex:
    """The newest versions in order. The following thread adds, any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[VersionEntry] = []
        self._by_number: dict[int, VersionEntry] = {}

    def add(self, entry: VersionEntry) -> None:
        """Add an applied version.

        One that is not newer than the last replaces every version from its number on: the follower restarted from a
        base.
        """
        with self._lock:
            known = self._by_number.get(entry.number)
            if known is not None and known.checksum == entry.checksum:
                return
            if self._entries and entry.number <= self._entries[-1].number:
                self._entries = [known for known in self._entries if known.number < entry.number]
            self._entries.append(entry)
            if len(self._entries) > MAX_VERSIONS:
                del self._entries[: MAX_VERSIONS // 10]
            if len(self._entries) != len(self._by_number) + 1:
                self._by_number = {known.number: known for known in self._entries}
            self._by_number[entry.number] = entry

    def find(self, number: int) -> VersionEntry | None:
        """The version of that number, or None."""
        with self._lock:
            return self._by_number.get(number)

    @property
    def oldest(self) -> int | None:
        """The oldest version number in the index, or None."""
        with self._lock:
            return self._entries[0].number if self._entries else None

    def newest(self, *, limit: int, before: int | None = None) -> list[VersionEntry]:
        """Up to `limit` versions, newest first, all below `before`."""
        with self._lock:
            end = len(self._entries)
            if before is not None:
                low, high = 0, end
                while low < high:
                    middle = (low + high) // 2
                    if self._entries[middle].number < before:
                        low = middle + 1
                    else:
                        high = middle
                end = low
            return self._entries[max(0, end - limit) : end][::-1]
