"""Where an id is still on the disk, and what must happen before it is not: for receipts of what was forgotten.

A file holds an id that has its row or its text. Marks and orders, which only say that it was forgotten, do not count:
they are how the forgetting reaches whoever follows. Files that no reader counts any more are looked into as well; half
a record at the end of a file is not: it goes with the file, or was never an answer to anybody.
"""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from springtide_client.errors import LogError
from springtide_client.format.tensors import Arrays, decode_tensors, map_tensors
from springtide_client.keys import mix_keys
from springtide_client.log.base import ID_STRINGS, ROWS, read_base_manifest
from springtide_client.log.directory import Listing, LogDirectory, base_name

from app.version_log.config import LogConfig
from app.version_log.read.id_dictionary import find_id_strings
from app.version_log.read.segments import scan_segment

CHUNK_ROWS = 1 << 20
_DRAFT = re.compile(r"\.tmp-(?:retired-)?base-(\d{20})-.*")


@dataclass(frozen=True)
class FileReference:
    """A file of the log that holds an id, and what must happen before it is unlinked."""

    file: str  # in the log's folder
    version: int  # the oldest that holds it there
    bases_missing: int  # so many more bases must be made
    is_open: bool  # and the trainer must go on in another file
    is_draft: bool  # of a base, or what is left of one
    expected_ms: int | None  # about when the bases are made, where a trainer and a merger run; None: none is missing

    def removal_condition(self, log: LogConfig) -> str:
        """When it will be unlinked, in words."""
        if self.is_draft:
            return "when the merge that makes it ends, or the next merger starts"
        if not self.bases_missing and not self.is_open:
            return "when the next base is made"
        conditions = []
        if self.bases_missing:
            minutes = self.bases_missing * log.base_minutes
            bases = "one more base is" if self.bases_missing == 1 else f"{self.bases_missing} more bases are"
            conditions.append(
                f"{bases} made ([log] base_minutes = {log.base_minutes:g}, keep_bases = {log.keep_bases}: "
                f"about {minutes:g} minutes of learning)"
            )
        if self.is_open:
            conditions.append("the trainer begins another file ([log] segment_bytes, or its next start)")
        return "when " + " and ".join(conditions)


class _Found(NamedTuple):
    file: str
    version: int  # the oldest with the id
    covered_by: int  # a base of at least this version makes it superfluous; 0: nobody counts it
    is_draft: bool = False


def oldest_file_containing(log: LogConfig, feature: int, row_id: int) -> FileReference | None:
    """The file with the oldest version of the log that still holds the id; None where no file does.

    Reads the keys of every segment and looks the key up in every base: about as long as reading the log once.
    """
    return next(iter(files_containing(log, feature, row_id)), None)


def files_containing(log: LogConfig, feature: int, row_id: int) -> list[FileReference]:
    """Every file that still holds the id, the one with the oldest version first."""
    directory = LogDirectory(log.path)
    listing = directory.scan()
    found = [*_in_bases(directory, listing, feature, row_id), *_in_segments(directory, listing, feature, row_id)]
    found += _in_drafts(directory, feature, row_id)
    open_file = max(listing.segments.get(listing.claimed_epoch, [""]))
    holdings = []
    for place in sorted(found, key=lambda place: (place.version, "/" in place.file, place.file)):
        newer = sum(number >= place.covered_by for number in listing.bases)
        missing = 0 if place.is_draft or not place.covered_by else max(0, log.keep_bases - newer)
        expected = None
        if missing and listing.bases:
            expected = _created_ms(directory, listing.bases[-1]) + round(missing * log.base_minutes * 60_000)
        is_open = place.file == open_file
        holdings.append(FileReference(place.file, place.version, missing, is_open, place.is_draft, expected))
    return holdings


def _in_bases(directory: LogDirectory, listing: Listing, feature: int, row_id: int) -> Iterator[_Found]:
    for number in listing.bases:
        path = directory.path / base_name(number)
        for name in (ROWS, ID_STRINGS):
            arrays = _mapped(path / name)
            if arrays is not None and _holds_sorted(arrays, feature, row_id, is_rows=name == ROWS):
                yield _Found(f"{path.name}/{name}", number, number + 1)


def _in_segments(directory: LogDirectory, listing: Listing, feature: int, row_id: int) -> Iterator[_Found]:
    manifest = directory.manifest(listing)
    counting = {name for name, _ in directory.readable_segments(listing, manifest)} if manifest else set()
    for epoch, names in listing.segments.items():
        for name in names:
            is_ignored = manifest is not None and epoch < manifest.epoch and name not in counting
            oldest, newest = None, 0
            for number, arrays in _records(directory.path / name):
                newest = max(newest, number)
                if oldest is None and any(_holds(arrays, group, feature, row_id) for group in ("rows", "texts")):
                    oldest = number
            if oldest is not None:
                yield _Found(name, oldest, 0 if is_ignored else newest)


def _in_drafts(directory: LogDirectory, feature: int, row_id: int) -> Iterator[_Found]:
    """What mergers left, or make now: its rows may not be sorted yet."""
    for path in sorted(directory.path.glob(".tmp-*")):
        match = _DRAFT.fullmatch(path.name)
        for name, group in ((ROWS, ""), (ID_STRINGS, "")) if match else ():
            arrays = _mapped(path / name)
            if match and arrays is not None and _holds(arrays, group, feature, row_id):
                yield _Found(f"{path.name}/{name}", int(match[1]), 0, is_draft=True)


def _records(path: Path) -> Iterator[tuple[int, Arrays]]:
    """Every whole record of a file, counted by readers or not; only what is looked at is read."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, ValueError):  # retired meanwhile, or empty
        return
    for header, end in scan_segment(path, verify_after=2**63):
        try:
            yield header.number, decode_tensors(content[end - header.length : end])[0]
        except LogError:
            continue


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
    mixed = mix_keys(features, ids)
    first, end = arrays["mixed"].searchsorted(mixed)[0], arrays["mixed"].searchsorted(mixed, "right")[0]
    return bool((arrays["feature"][first:end] == feature).any())


def _mapped(path: Path) -> Arrays | None:
    try:
        return map_tensors(path)
    except (OSError, LogError):  # retired meanwhile, absent, or not yet written
        return None


def _created_ms(directory: LogDirectory, number: int) -> int:
    try:
        return read_base_manifest(directory.path / base_name(number)).created_ms
    except (OSError, LogError):
        return 0
