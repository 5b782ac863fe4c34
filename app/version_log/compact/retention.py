"""Retention: delete bases that nothing keeps, and segments whose records no kept base and no pinned version needs."""

import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from springtide.app.version_log.compact.base_writer import is_complete
from springtide.app.version_log.config import KeepRule, LogConfig
from springtide.app.version_log.disk_budget import folder_bytes
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.kept_versions import FOLDER as PINS
from springtide.app.version_log.kept_versions import (
    KeptVersions,
    Pin,
    described,
    kept_by_rule,
    kept_versions,
    pin_names,
    read_pins,
    retention_lock,
)
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.index_entry import size_of
from springtide_client.format.records import EPOCH_SHIFT
from springtide_client.log.base import BaseManifest, read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import Listing, LogManifest, base_name

LOCK_WAIT_SECONDS = 10.0
NO_RULE = KeepRule()

logger = logging.getLogger(__name__)


def apply_retention(
    directory: LogDirectory, keep_bases: int, *, rule: KeepRule = NO_RULE, log_bytes: int | None = None
) -> list[str]:
    """1. Choose what to keep. 2. Delete other bases. 3. Delete segments without a record that is needed.

    Kept are the newest `keep_bases` bases with every version since, bases by `rule`, and pinned versions. Where
    `log_bytes` is given and short, the oldest bases by rule go. Returns the deleted names. A process that has a deleted
    file open or mapped can read on. Does nothing while an epoch starts.
    """
    with retention_lock(directory.path, wait_seconds=LOCK_WAIT_SECONDS) as is_held:
        if not is_held:
            logger.warning("nothing was deleted: another process holds retention.lock")
            return []
        listing = directory.scan()
        manifest = directory.manifest(listing)
        bases = [read_base_manifest(path) for path in complete_bases(directory)]
        if manifest is None or not listing.is_settled or not bases:
            return []
        retention = Retention(directory, listing, manifest, bases, read_pins(directory.path))
        deletion = retention.plan(keep_bases, rule, log_bytes)
        failpoint("before files are deleted")
        for name in deletion.bases:
            delete_base(directory.path / name)
        failpoint("during retention")
        for name in deletion.segments:
            (directory.path / name).unlink(missing_ok=True)
        for draft in (directory.path / PINS).glob(".tmp-*"):  # of a process that was killed while it pinned
            draft.unlink(missing_ok=True)
    if deletion.names:
        logger.info("bases and segments deleted", extra={"names": deletion.names})
    return deletion.names


class Deletion(NamedTuple):
    """The names of bases and segments to delete, and their bytes."""

    bases: list[str]
    segments: list[str]
    num_bytes: int

    @property
    def names(self) -> list[str]:
        return self.bases + self.segments


class Retention:
    """One decision about what to keep. `bases`: all complete ones, oldest first."""

    def __init__(
        self,
        directory: LogDirectory,
        listing: Listing,
        manifest: LogManifest,
        bases: Sequence[BaseManifest],
        pins: Sequence[Pin],
    ) -> None:
        self._directory, self._listing, self._manifest = directory, listing, manifest
        self._bases, self._pins = bases, pins
        self._runs = LogIndex(directory).runs if pins else None
        self._segments = ranges_of(directory, directory.readable_segments(listing, manifest))
        # of each epoch that was not only claimed, and of each of its ranks
        shards = [names for (epoch, _), names in listing.shards.items() if epoch <= manifest.epoch]
        self._shards = [ranges_of(directory, [(name, None) for name in names]) for names in shards]
        for pin in pins:
            if self._base_of(pin.version) is None:
                logger.error("a pinned version cannot be rebuilt", extra={"pin": pin.name, "version": pin.version})

    def plan(self, keep_bases: int, rule: KeepRule, log_bytes: int | None) -> Deletion:
        """Return what to delete, so that the log stays within `log_bytes` if the pins leave enough of it."""
        by_rule = kept_by_rule(self._bases, rule)
        deletion = self._deletion(keep_bases, by_rule)
        if log_bytes is None:
            return deletion
        used = folder_bytes(self._directory.path)
        limit = log_bytes - log_bytes // 4 - self._bases[-1].num_bytes
        everything, went = deletion, list[BaseManifest]()
        while by_rule and used - deletion.num_bytes > limit:
            by_rule.pop(0)
            deletion = self._deletion(keep_bases, by_rule)
            before, now = set(everything.bases), set(deletion.bases)
            went = [base for base in self._bases if base_name(base.number) in now - before]
        if went:
            extra = {"log_bytes": log_bytes, "deleted": len(went), "up_to": described(went[-1])}
            logger.warning("log_bytes is short: the oldest bases that [log] keep names are deleted", extra=extra)
        if self._pins and used - deletion.num_bytes > limit:
            names = [pin.name for pin in self._pins]
            logger.warning("log_bytes is short, also because of pinned versions: unpin some", extra={"pins": names})
        return deletion

    def _deletion(self, keep_bases: int, by_rule: Sequence[int]) -> Deletion:
        kept = kept_versions(
            self._bases, keep_bases=keep_bases, by_rule=frozenset(by_rule), pins=self._pins, base_of=self._base_of
        )
        complete = {base.number: base for base in self._bases}
        # an incomplete base goes when it is old, unless it is what is left of a pinned version
        spared = {*kept.bases, *(pin.version for pin in self._pins)}
        bases = [
            version
            for version in self._listing.bases
            if version not in spared and (version in complete or version < kept.oldest_recent)
        ]
        segments = self._unneeded_segments(kept)
        freed = sum(complete[version].num_bytes for version in bases if version in complete)
        freed += sum(size_of(self._directory.path / name) for name in segments)
        return Deletion([base_name(version) for version in bases], segments, freed)

    def _base_of(self, version: int) -> int | None:
        """Return the newest complete base from which a version can be rebuilt."""
        complete = {base.number for base in self._bases}
        numbers = self._runs.bases_of(version) if self._runs is not None else ()
        return next((version for version in numbers if version in complete), None)

    def _unneeded_segments(self, kept: KeptVersions) -> list[str]:
        """Return the files without a needed record, and those that readers ignore; never the newest of any rank.

        Each is judged by its own records: files of shard records end at other versions than segments.
        """
        own = [self._listing.segments.get(self._manifest.epoch, [])]
        own += [names for (epoch, _), names in self._listing.shards.items() if epoch == self._manifest.epoch]
        newest = {names[-1] for names in own if names}
        unneeded = []
        for segment in (*self._segments, *itertools.chain.from_iterable(self._shards)):
            last = segment.last
            if kept.needs_any(segment.first, last) and not kept.needs_any(segment.first, segment.first):
                last = newest_number(self._directory.path / segment.name, segment.limit)  # exactly
            if not kept.needs_any(segment.first, last) and segment.name not in newest:
                unneeded.append(segment.name)
        readable = {segment.name for segment in self._segments}
        # segments of older epochs that no manifest lists were written by a replaced trainer
        older = [
            name for epoch, names in self._listing.segments.items() if epoch < self._manifest.epoch for name in names
        ]
        return unneeded + [name for name in older if name not in readable]


class SegmentRange(NamedTuple):
    """A segment, and numbers between which all of its versions are."""

    name: str
    limit: int | None  # valid bytes; None: all
    first: int
    last: int


def ranges_of(directory: LogDirectory, files: Sequence[tuple[str, int | None]]) -> list[SegmentRange]:
    """Return files that one writer has written after the other, by their first headers.

    One without a record has an empty range.
    """
    ranges: list[SegmentRange] = []
    following = 1 << 63
    for name, limit in reversed(files):
        first = next((frame.header.number for frame in sound_frames(directory.path / name, limit)), None)
        epoch = int(name[4:14])
        last = min(following, (epoch + 1) << EPOCH_SHIFT) - 1
        ranges.append(SegmentRange(name, limit, last + 1 if first is None else first, last))
        following = following if first is None else first
    return ranges[::-1]


def newest_number(path: Path, limit: int | None) -> int:
    """Return the number of a segment's last complete record; 0 if it has none."""
    return max((frame.header.number for frame in sound_frames(path, limit)), default=0)


def delete_base(base_path: Path) -> None:
    """Delete a base. It is renamed first, so that readers see all of it or none."""
    renamed = base_path.with_name(f".tmp-deleted-{base_path.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        base_path.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def complete_bases(directory: LogDirectory) -> list[Path]:
    """Return the bases, oldest first, whose manifest can be read and whose files have the right sizes."""
    return [path for path in directory.bases() if is_complete(path)]


def remove_drafts(directory: LogDirectory) -> None:
    """Delete what a killed compactor left. Call it with the compactor lock held.

    What the newest trainer may be writing is left alone: the first base of a log, or of a changed schema.
    """
    if directory.bases():
        begin = base_name(directory.scan().claimed_epoch << EPOCH_SHIFT)
        for pattern in (".tmp-base-*", ".tmp-deleted-*"):
            for path in directory.path.glob(pattern):
                if not path.name.startswith(f".tmp-{begin}"):
                    shutil.rmtree(path, ignore_errors=True)


class KeptSize(NamedTuple):
    """Numbers of bases, if all are as large as the newest one."""

    base_bytes: int
    num_wanted: int  # with those by rule
    num_required: int  # the recent ones, the next one, and those of pins
    num_fitting: int  # into log_bytes, when a quarter of it is left for segments
    pins: list[str]


def kept_size(log: LogConfig) -> KeptSize | None:
    """Return the sizes; None for a log that is not written yet."""
    bases = complete_bases(LogDirectory(log.path))
    if not bases:
        return None
    base_bytes, pins, rule = max(1, read_base_manifest(bases[-1]).num_bytes), pin_names(log.path), log.keep_rule
    required = log.keep_bases + 1 + len(pins)
    fitting = (log.log_bytes - log.log_bytes // 4) // base_bytes
    return KeptSize(base_bytes, required + rule.hourly + rule.daily, required, fitting, pins)
