"""Limits of the spill's disk: how much a folder takes of its limit, measured now and then; and beyond its part of
`disk_bytes` the rows seen least recently expire.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.tiers.interface import Spill

SHORT = 0.8  # of the limit: space is freed from there on, so that writes need not wait for it
PARTS = 16  # of the limit: the size of one database, which is what can be freed at a time
MIN_PART_BYTES = 1 << 20
MEASURE_PARTS = 4  # of a part: the folder is measured after so many bytes were written
STORED_PER_WRITTEN = 1.2  # until it is measured: the records, their filters and indexes


class DiskSpace:
    """One thread counts and measures; any thread may read or set the limit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit: int | None = None
        self.used = 0
        self._unmeasured = 0

    @property
    def part_bytes(self) -> float:
        """The size at which writes go to another database."""
        return float("inf") if self.limit is None else max(MIN_PART_BYTES, self.limit // PARTS)

    def is_short(self, queued_bytes: int) -> bool:
        """Return True if what is written, and is to be written, takes nearly all."""
        return self.limit is not None and self.used + queued_bytes > SHORT * self.limit

    def is_mostly(self, num_bytes: int) -> bool:
        """Return True if records of so many bytes take more than half of the limit."""
        return self.limit is not None and STORED_PER_WRITTEN * num_bytes > self.limit / 2

    def is_full(self) -> bool:
        return self.limit is not None and self.used >= self.limit

    def fraction_to_free(self, queued_bytes: int) -> float:
        """The fraction of what is stored that has to go, so that it is not short for a while."""
        if self.limit is None or not self.used:
            return 0.0
        used = self.used + queued_bytes
        return min(1.0, max(1.5 / PARTS, 1 - (SHORT - 2 / PARTS) * self.limit / used))

    def add_written(self, num_bytes: int) -> None:
        """Count bytes that were written, and measure if it is time."""
        self.used += int(STORED_PER_WRITTEN * num_bytes)
        self._unmeasured += num_bytes
        if self.limit is not None and self._unmeasured > max(self.part_bytes / MEASURE_PARTS, self.limit / 256):
            self.measure()

    def measure(self) -> None:
        """Measure the folder now, as after something was deleted."""
        self.used, self._unmeasured = folder_bytes(self.folder), 0


def folder_bytes(folder: Path) -> int:
    """The bytes of all files in a folder; files that are deleted meanwhile are skipped."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # RocksDB deletes files when it compacts
                total += os.stat(os.path.join(path, name)).st_size
    return total


CHECK_CALLS = 64  # measuring the log is too slow for every batch


class DiskCap:
    """Sets the limit of the spill, and raises the expiry cutoffs when the spill can keep it in no other way.

    The size of the folder depends on the disk and on the time of the check. So these cutoffs do not follow from the
    stream alone: the next version contains them, and only a replay of versions reproduces them.
    """

    def __init__(
        self, spill: Spill, cutoffs: ExpiryCutoffs, disk_bytes: int, *, other_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        """`other_bytes`: what the log takes of `disk_bytes`. At most half counts, because expiry cannot free it."""
        self.spill, self.cutoffs, self._other_bytes = spill, cutoffs, other_bytes
        self._num_calls = 0
        self.share: Callable[[int], int] = lambda num_bytes: num_bytes  # of what all spills may take; one has it all
        self.set_limit(disk_bytes)

    def set_limit(self, disk_bytes: int) -> None:
        self.num_bytes = disk_bytes
        self.spill.set_limit(self.spill_bytes())

    def spill_bytes(self) -> int:
        """The bytes that the spill may take now."""
        return self.share(max(self.num_bytes - self._other_bytes(), self.num_bytes // 2))

    def advance(self, features: Iterable[int]) -> None:
        """Before a batch: let rows expire if they must; `features` are those that have rows."""
        self._num_calls += 1
        if self._num_calls % CHECK_CALLS == 0:
            self.spill.set_limit(self.spill_bytes())
            if self.cutoffs:
                self.spill.purge(self.cutoffs.as_dict())
        fraction = self.spill.fraction_to_forget()
        if not fraction:
            return
        coldest = self.spill.last_seen_quantile(fraction)
        if coldest is not None and self.cutoffs.raise_to(dict.fromkeys(features, coldest)):
            self.spill.purge(self.cutoffs.as_dict())
