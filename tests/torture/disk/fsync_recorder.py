"""Record every fsync under a folder, by any number of processes: what a simulated power loss must leave of it.

A record says how long a file was, or which names a folder held, when its fsync began. Each file gets a second hard
link, so that an unlinked one can be restored. Knows nothing of logs.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FsyncRecord = dict[str, Any]


class FsyncRecorder:
    """Records the fsyncs of this process. `folder` must be on the same disk as `root`, and outside it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.store = os.path.realpath(root), folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self._journal = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self.before_each: Callable[[], None] = lambda: None  # called before each fsync, rename, unlink and rmdir
        self._fsync, self._rmdir, self._rename, self._unlink = os.fsync, os.rmdir, os.rename, os.unlink

    def install(self) -> None:
        """Record from now on."""
        os.fsync, os.rmdir, os.rename, os.unlink = self.fsync, self.rmdir, self.rename, self.unlink

    def remove(self) -> None:
        os.fsync, os.rmdir, os.rename, os.unlink = self._fsync, self._rmdir, self._rename, self._unlink

    @contextmanager
    def recording(self) -> Iterator["FsyncRecorder"]:
        self.install()
        try:
            yield self
        finally:
            self.remove()
            os.close(self._journal)

    def fsync(self, descriptor: int) -> None:
        """1. Look at the file. 2. fsync. 3. Record what was seen: what was written meanwhile may be lost."""
        self.before_each()
        record = self._look(descriptor)
        self._fsync(descriptor)
        self.write(record)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.before_each()
        number = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_ino
        self._rmdir(path, dir_fd=dir_fd)
        self.write({"removed": number})

    def rename(self, source: Any, target: Any, **where: Any) -> None:
        self.before_each()
        self._rename(source, target, **where)

    def unlink(self, path: Any, **where: Any) -> None:
        self.before_each()
        self._unlink(path, **where)

    def write(self, record: FsyncRecord | None) -> None:
        if record is not None:
            os.write(self._journal, json.dumps(record).encode() + b"\n")

    def record_all(self) -> None:
        """Record everything under the root as fsynced."""
        for folder, _, files in os.walk(self.root):
            for name in files:
                number, size = self.pin(f"{folder}/{name}")
                self.write({"file": number, "size": size})
            self.write(self._look_at_folder(folder))

    def _look(self, descriptor: int) -> FsyncRecord | None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path != self.root and not path.startswith(self.root + "/"):
            return None
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return self._look_at_folder(path)
        size = os.fstat(descriptor).st_size
        try:
            self.pin(path)
        except FileNotFoundError:
            return None
        return {"file": os.fstat(descriptor).st_ino, "size": size}

    def _look_at_folder(self, folder: str) -> FsyncRecord | None:
        entries = {}
        try:
            for entry in os.scandir(folder):
                try:
                    is_dir = entry.is_dir(follow_symlinks=False)
                    number = entry.stat(follow_symlinks=False).st_ino if is_dir else self.pin(entry.path)[0]
                    entries[entry.name] = [number, is_dir]
                except FileNotFoundError:  # removed meanwhile
                    continue
            return {"folder": os.stat(folder).st_ino, "entries": entries}
        except FileNotFoundError:
            return None

    def pin(self, path: str) -> tuple[int, int]:
        """Give the file a second link; return its inode number and its size."""
        status = os.stat(path, follow_symlinks=False)
        kept = self.store / str(status.st_ino)
        if not kept.exists():
            with suppress(FileExistsError):
                os.link(path, kept)
        return status.st_ino, status.st_size


class SyncedState:
    """What is on the disk, by the records. A folder differs from a later one that reuses its inode number."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[int, int] = {}
        self.folders: dict[
            tuple[int, int], dict[str, tuple[int, int]]
        ] = {}  # (inode, how often removed) -> entries by name
        self._removed: Counter[int] = Counter()
        for line in (folder / "journal").read_bytes().splitlines():
            record = json.loads(line)
            if "file" in record:
                self.files[record["file"]] = max(record["size"], self.files.get(record["file"], 0))
            elif "folder" in record:
                entries = {name: self.key(number, is_dir) for name, (number, is_dir) in record["entries"].items()}
                self.folders[self.key(record["folder"], True)] = entries
            else:
                self._removed[record["removed"]] += 1

    def key(self, number: int, is_dir: bool) -> tuple[int, int]:
        """Return the key of an inode; -1 for files, whose numbers are never reused because of their second link."""
        return number, self._removed[number] if is_dir else -1
