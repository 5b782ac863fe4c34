"""How `log_bytes` is shared among bases and segments, so that there is always room for the next base."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from springtide_client.log.listing import base_name

BASE_SHARE = 5 / 16  # of log_bytes: one base and the next one, while it is written, leave 3/8 for the segments
KEPT_SEGMENTS_SHARE = 1 / 4  # more than one base is kept only if it leaves this for new segments
EARLY_SHARE = 1 / 8  # with less room the next base is begun, so that learning need not wait for it
LEAST_ROWS_SHARE = 1 / 4  # of a base is for rows, however large the net is
VERSION_SHARE = 1 / 16  # a version is published early when its rows may take this much
BASE_PREFIX, DRAFT_PREFIX, SEGMENT_PREFIX = base_name(0).split("-")[0] + "-", ".tmp-", "seg-"


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files under a folder: one with several names counts once, one deleted meanwhile 0."""
    return _folder_bytes(folder, set())


def _folder_bytes(folder: Path, linked: set[tuple[int, int]]) -> int:
    """`linked`: device and inode of files with several names that are counted already."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        total += _folder_bytes(Path(entry.path), linked)
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    inode = stat.st_dev, stat.st_ino
                    total += 0 if inode in linked else stat.st_size
                    if stat.st_nlink > 1:
                        linked.add(inode)
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return total


@dataclass(frozen=True)
class LogUsage:
    """Bytes of a log's files by kind."""

    bases: tuple[int, ...]  # oldest first
    drafts: int  # of bases that are being written or deleted
    segments: int
    others: int

    @staticmethod
    def of(path: Path) -> "LogUsage":
        """Measure a log's folder; a file deleted meanwhile counts 0."""
        bases, drafts, segments, others = [], 0, 0, 0
        try:
            names = sorted(os.listdir(path))
        except FileNotFoundError:
            names = []
        for name in names:
            num_bytes = _bytes_of(path / name)
            if name.startswith(BASE_PREFIX):
                bases.append(num_bytes)
            elif name.startswith(DRAFT_PREFIX):
                drafts += num_bytes
            elif name.startswith(SEGMENT_PREFIX):
                segments += num_bytes
            else:
                others += num_bytes
        return LogUsage(tuple(bases), drafts, segments, others)

    @property
    def total(self) -> int:
        return sum(self.bases) + self.drafts + self.segments + self.others


@dataclass(frozen=True)
class DiskBudget:
    """Rules of how a log of at most `log_bytes` is used. Trainer and compactor apply the same ones."""

    log_bytes: int

    @property
    def max_base_bytes(self) -> int:
        """A base may take this much: the trainer lets rows expire before the next one would take more."""
        return int(BASE_SHARE * self.log_bytes)

    @cached_property
    def max_version_bytes(self) -> int:
        return int(VERSION_SHARE * self.log_bytes)

    def next_base_bytes(self, usage: LogUsage) -> int:
        """At most so many bytes the next base will take."""
        newest = usage.bases[-1] if usage.bases else 0
        return min(newest + usage.segments, max(self.max_base_bytes, newest))

    def free_bytes(self, usage: LogUsage) -> int:
        """Return how many bytes new segments may take, with room left for the next base; below 0 the trainer waits."""
        return self.log_bytes - usage.total - max(0, self.next_base_bytes(usage) - usage.drafts)

    def is_short(self, usage: LogUsage) -> bool:
        """Return True if it is time for the next base because of room."""
        return self.free_bytes(usage) < EARLY_SHARE * self.log_bytes

    def num_bases(self, usage: LogUsage, wanted: int) -> int:
        """How many bases to keep: `wanted`, if they and their segments leave room for the next one; else 1."""
        newest = usage.bases[-1] if usage.bases else 0
        kept = sum(usage.bases[-wanted:]) + usage.segments + usage.others
        return wanted if kept + newest <= (1 - KEPT_SEGMENTS_SHARE) * self.log_bytes else 1


def base_row_bytes(dim: int, state_width: int) -> int:
    """Bytes of a row in a base: key hash, feature, id, values, state, count and last-seen."""
    return 34 + 4 * (dim + state_width)


def _bytes_of(path: Path) -> int:
    try:
        return folder_bytes(path) if path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0
