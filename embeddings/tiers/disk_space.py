"""How many bytes a folder takes of its limit: measured now and then, estimated in between."""

import os
from contextlib import suppress
from pathlib import Path

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
