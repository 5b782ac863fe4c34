"""A kernel memory limit that includes the page cache: a cgroup of version 1 or 2, made for a benchmark and removed."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20
LIMITS = ("memory.max", "memory.limit_in_bytes")  # version 2, version 1


class MemoryCgroup:
    """A child of a memory cgroup; OSError if this user may not make one there."""

    def __init__(self, parent: Path) -> None:
        self.path = parent / f"springtide-bench-{os.getpid()}"
        self.path.mkdir()
        self.peak_bytes = 0  # of anonymous memory, within `watched`
        self._limit = next((self.path / name for name in LIMITS if (self.path / name).exists()), None)
        if self._limit is None:
            self.path.rmdir()
            raise OSError(f"{parent} has no memory controller for its children")
        self._unlimited = self._limit.read_text()

    def add(self, pid: int) -> None:
        """Add a process, with all that it starts from now on."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory of its processes, shared memory included."""
        pairs = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in pairs}
        names = ("anon", "shmem") if "anon" in stat else ("total_rss", "total_shmem")
        return sum(stat[name] for name in names)

    @contextmanager
    def watched(self, every_seconds: float = 0.02) -> Iterator[None]:
        """Within the context, keep `peak_bytes` up to date."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(every_seconds):
                self.peak_bytes = max(self.peak_bytes, self.anonymous_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def limit(self, num_bytes: int) -> None:
        """Limit the memory; cached pages beyond it are dropped."""
        assert self._limit is not None
        self._limit.write_text(str(num_bytes))

    def lift(self) -> None:
        """Remove the limit, so that the processes can exit quickly."""
        assert self._limit is not None
        self._limit.write_text(self._unlimited)

    def remove(self) -> None:
        """Remove the cgroup; its processes must have ended."""
        self.path.rmdir()


def uncached_copy(folder: Path, to: Path) -> Path:
    """Copy files without leaving their pages in the cache: they count for the process that reads them first."""
    shutil.copytree(folder, to)
    drop_page_cache(to)
    return to


def drop_page_cache(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in filter(Path.is_file, folder.rglob("*")):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
