"""The files of the log that still hold an id, which one of them does so longest, and when it is deleted."""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.kept_versions import kept_by_rule, read_pins
from springtide.app.version_log.read.id_dictionary import find_id_strings
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.tables import is_row_id
from springtide_client.errors import LogError
from springtide_client.format.tensors import Arrays, decode_tensors, map_tensors
from springtide_client.keys import hash_keys
from springtide_client.log.base import ID_STRINGS, ITEMS, read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import Listing, base_name

CHUNK_ROWS = 1 << 20
ROWS_FILES = "rows*.safetensors"  # of all tables
_DRAFT = re.compile(r"\.tmp-(?:deleted-)?base-(\d{20})-.*")


@dataclass(frozen=True)
class FileReference:
    """A file of the log that holds an id, and what must happen before it is deleted."""

    file: str  # in the log's folder
    version: int  # the oldest version in the file that has the id
    bases_missing: int  # how many more bases must be written first
    is_open: bool  # the trainer is writing it, and must start another file first
    is_draft: bool  # an unfinished base, or one being deleted
    # about when the missing bases are written, if a trainer and a compactor run; None if none is missing
    expected_ms: int | None
    pins: tuple[str, ...] = ()  # pinned versions that need the file
    by_rule: bool = False  # the rule [log] keep keeps the file

    def removal_condition(self, log: LogConfig) -> str:
        """Say when the file will be deleted: a clause that starts with "when"."""
        if self.is_draft:
            return "when the compaction that writes it ends, or the next compactor starts"
        if not self.bases_missing and not self.is_open and not self.pins and not self.by_rule:
            return "when the next base is written"
        conditions = []
        if self.bases_missing:
            minutes = self.bases_missing * log.base_minutes
            bases = "one more base is" if self.bases_missing == 1 else f"{self.bases_missing} more bases are"
            conditions.append(
                f"{bases} written ([log] base_minutes = {log.base_minutes:g}, keep_bases = {log.keep_bases}: "
                f"about {minutes:g} minutes of learning)"
            )
        if self.is_open:
            conditions.append("the trainer starts another file ([log] segment_bytes, or its next start)")
        if self.by_rule:
            conditions.append("[log] keep does not name that base any more")
        if self.pins:
            conditions.append(f"its pins are removed (`springtide versions unpin`: {', '.join(self.pins)})")
        return "when " + " and ".join(conditions)


class _Found(NamedTuple):
    file: str
    version: int  # the oldest with the id
    covered_by: int  # a base of at least this version replaces the file; 0: readers ignore it already
    is_draft: bool = False


class _Keepers:
    """Pins and the rule, which keep files beyond the newest bases."""

    def __init__(self, log: LogConfig, directory: LogDirectory) -> None:
        pins = read_pins(directory.path)
        runs = LogIndex(directory).runs if pins else None
        self._pins = [(pin.name, base, pin.version) for pin in pins if runs and (base := runs.base_of(pin.version))]
        rule = log.keep_rule
        bases = [read_base_manifest(path) for path in directory.bases()] if rule.hourly or rule.daily else []
        self._by_rule = kept_by_rule(bases, rule)

    def of(self, place: _Found) -> tuple[tuple[str, ...], bool]:
        """Return the pins that need a file, and whether the rule keeps it."""
        if place.is_draft or not place.covered_by:
            return (), False
        if "/" in place.file:  # of a base
            return tuple(name for name, base, _ in self._pins if base == place.version), place.version in self._by_rule
        needs = (name for name, base, end in self._pins if base < place.covered_by and place.version <= end)
        return tuple(needs), False


def oldest_file_containing(log: LogConfig, feature: int, row_id: int) -> FileReference | None:
    """Return the file with the oldest version that still holds the id, or None.

    Reads the keys of every segment and looks the id up in every base: takes about as long as reading the log once.
    """
    return next(iter(files_containing(log, feature, row_id)), None)


def files_containing(log: LogConfig, feature: int, row_id: int) -> list[FileReference]:
    """Return every file that still holds the id, the one with the oldest version first."""
    directory = LogDirectory(log.path)
    listing = directory.scan()
    found = [*_in_bases(directory, listing, feature, row_id), *_in_segments(directory, listing, feature, row_id)]
    found += _in_drafts(directory, feature, row_id)
    keepers = _Keepers(log, directory)
    shards = (names for (epoch, _), names in listing.shards.items() if epoch == listing.claimed_epoch)
    open_files = {max(names) for names in (listing.segments.get(listing.claimed_epoch, [""]), *shards)}
    references = []
    for place in sorted(found, key=lambda place: (place.version, "/" in place.file, place.file)):
        newer = sum(version >= place.covered_by for version in listing.bases)
        missing = 0 if place.is_draft or not place.covered_by else max(0, log.keep_bases - newer)
        expected = None
        pins, by_rule = keepers.of(place)
        if missing and listing.bases and not pins and not by_rule:
            expected = _created_ms(directory, listing.bases[-1]) + round(missing * log.base_minutes * 60_000)
        is_open = place.file in open_files
        reference = FileReference(place.file, place.version, missing, is_open, place.is_draft, expected, pins, by_rule)
        references.append(reference)
    return references


def _in_bases(directory: LogDirectory, listing: Listing, feature: int, row_id: int) -> Iterator[_Found]:
    for version in listing.bases:
        path = directory.path / base_name(version)
        for name in _searched(path):
            arrays = _mapped(path / name)
            if arrays is not None and _holds_sorted(arrays, feature, row_id, is_rows=name not in (ID_STRINGS, ITEMS)):
                yield _Found(f"{path.name}/{name}", version, version + 1)


def _in_segments(directory: LogDirectory, listing: Listing, feature: int, row_id: int) -> Iterator[_Found]:
    manifest = directory.manifest(listing)
    readable = {name for name, _ in directory.readable_segments(listing, manifest)} if manifest else set()
    shards = {name for names in listing.shards.values() for name in names}
    for epoch, name in listing.record_files:
        is_ignored = manifest is not None and epoch < manifest.epoch and name not in readable | shards
        oldest, newest = None, 0
        for version, arrays in _records(directory.path / name):
            newest = max(newest, version)
            if oldest is None and any(_holds(arrays, group, feature, row_id) for group in _groups(arrays)):
                oldest = version
        if oldest is not None:
            yield _Found(name, oldest, 0 if is_ignored else newest)


def _in_drafts(directory: LogDirectory, feature: int, row_id: int) -> Iterator[_Found]:
    """Search unfinished bases; their rows may not be sorted yet."""
    for path in sorted(directory.path.glob(".tmp-*")):
        match = _DRAFT.fullmatch(path.name)
        for name in _searched(path) if match else ():
            arrays = _mapped(path / name)
            if match and arrays is not None and _holds(arrays, "", feature, row_id):
                yield _Found(f"{path.name}/{name}", int(match[1]), 0, is_draft=True)


def _records(path: Path) -> Iterator[tuple[int, Arrays]]:
    """Yield the number and tensors of every complete record of a file, mapped into memory rather than read."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, ValueError):  # deleted meanwhile, or empty
        return
    for frame in sound_frames(path):
        try:
            yield frame.header.number, decode_tensors(content[frame.end - frame.header.length : frame.end])[0]
        except LogError:
            continue


def _searched(folder: Path) -> list[str]:
    """Return the files of a base that hold rows, one for each table, strings or items."""
    return [*sorted(path.name for path in folder.glob(ROWS_FILES)), ID_STRINGS, ITEMS]


def _groups(arrays: Arrays) -> list[str]:
    """Return the groups of a record's tensors with rows, one for each table, with strings and with items."""
    return [*(name.removesuffix(".id") for name in arrays if is_row_id(name)), "texts", "items"]


def _holds(arrays: Arrays, group: str, feature: int, row_id: int) -> bool:
    prefix = f"{group}." if group else ""
    if f"{prefix}id" not in arrays:
        return False
    features, ids = arrays[f"{prefix}feature"], arrays[f"{prefix}id"]
    for start in range(0, len(ids), CHUNK_ROWS):
        here = ids[start : start + CHUNK_ROWS] == row_id
        if here.any() and bool((features[start : start + CHUNK_ROWS][here] == feature).any()):
            return True
    return False


def _holds_sorted(arrays: Arrays, feature: int, row_id: int, *, is_rows: bool) -> bool:
    features, ids = np.array([feature], np.uint16), np.array([row_id], np.int64)
    if not is_rows:
        return bool(find_id_strings(arrays, features, ids)[0] >= 0)
    key_hash = hash_keys(features, ids)
    first, end = arrays["mixed"].searchsorted(key_hash)[0], arrays["mixed"].searchsorted(key_hash, "right")[0]
    return bool((arrays["feature"][first:end] == feature).any())


def _mapped(path: Path) -> Arrays | None:
    try:
        return map_tensors(path)
    except (OSError, LogError):  # deleted meanwhile, absent, or not yet written
        return None


def _created_ms(directory: LogDirectory, version: int) -> int:
    try:
        return read_base_manifest(directory.path / base_name(version)).created_ms
    except (OSError, LogError):
        return 0
