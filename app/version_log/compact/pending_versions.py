"""The versions that the newest base does not cover: their bytes, and whether any of them changed something."""

from pathlib import Path
from typing import NamedTuple

from springtide.app.version_log.read.segments import size_of
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import Frame, sound_frames

LENGTH_BYTES = 8  # of the length before the JSON header of a payload


class Pending(NamedTuple):
    """Versions that are in no base yet."""

    num_bytes: int
    is_idle: bool  # all of them are heartbeats: they only say that nothing came


class PendingVersions:
    """Looks at the segments behind a base. It remembers how far they hold heartbeats only, and reads on from there."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._base = 0
        self._covered: dict[str, int] = {}  # segment with newer versions -> its bytes that the base covers
        self._idle_until: dict[str, int] = {}  # segment -> offset up to which it is read and idle

    def after(self, number: int) -> Pending:
        """Return what follows the base of this number."""
        if number != self._base:
            self._base, self._covered, self._idle_until = number, {}, {}
        listing = self._directory.scan()
        manifest = self._directory.manifest(listing)
        if manifest is None:
            return Pending(0, True)
        pending, is_idle = 0, True
        chains = [self._directory.readable_segments(listing, manifest)]
        chains += [[(name, None) for name in names] for names in listing.shards.values()]
        for files in chains:
            is_covered = True
            for name, limit in files:
                path = self._directory.path / name
                covered = self._covered_bytes(path, limit) if is_covered else 0
                is_covered = is_covered and name not in self._covered
                pending += (size_of(path) if limit is None else limit) - covered
                if not is_covered and is_idle:
                    is_idle = self._is_idle(path, limit, self._idle_until.get(name, covered))
        return Pending(pending, is_idle)

    def _covered_bytes(self, path: Path, limit: int | None) -> int:
        """Return how many bytes at the beginning of a file the base covers."""
        if path.name in self._covered:
            return self._covered[path.name]
        covered = 0
        for frame in sound_frames(path, limit):
            if frame.header.number > self._base:
                self._covered[path.name] = covered
                break
            covered = frame.end
        return covered

    def _is_idle(self, path: Path, limit: int | None, start: int) -> bool:
        """Return True if all records of a file from an offset on are heartbeats."""
        for frame in sound_frames(path, limit, start):
            if not is_heartbeat(frame):
                return False
            self._idle_until[path.name] = frame.end
        return True


def is_heartbeat(frame: Frame) -> bool:
    """Return True if a record holds no tensors: nothing but a version's meta."""
    return int.from_bytes(frame.read_bytes(LENGTH_BYTES), "little") + LENGTH_BYTES == frame.header.length
