"""Follow a log at the lowest priority, write its next base when one is due, and delete what it covers."""

import logging
import threading
import time
from pathlib import Path
from typing import NamedTuple

from springtide.app.models.export.onnx_export import is_possible
from springtide.app.version_log.compact.merge import MAX_REPLAYED_BYTES, compact_log, write_merged_base
from springtide.app.version_log.compact.onnx import OnnxBuilder
from springtide.app.version_log.compact.retention import apply_retention, complete_bases, remove_drafts
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.disk_budget import DiskBudget, LogUsage
from springtide.app.version_log.kept_versions import groups_of_equal_bases, pin_names, read_pins
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.index_entry import is_heartbeat, size_of
from springtide.app.version_log.read.replay_state import ReplayState
from springtide.app.version_log.read.version_range import VersionRange
from springtide_client.errors import LogError
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import base_number
from springtide_client.system.files import file_lock

LOCK_NAME = "compactor.lock"
POLL_SECONDS = 1.0
SEGMENT_BYTES = 1 << 30  # more than this, and than one base, is compacted before base_minutes have passed
FULL_SECONDS = 5.0  # while the trainer waits for room, a base is made this often of whatever is there
IDLE_BYTES = 16 << 20  # of heartbeats alone: then the newest base is linked under the newest number
WINDOW_SAMPLES = 20_000

logger = logging.getLogger(__name__)


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

    def after(self, version: int) -> Pending:
        """Return what follows the base of this number."""
        if version != self._base:
            self._base, self._covered, self._idle_until = version, {}, {}
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


def pinned_base_due(directory: LogDirectory, *, keep_bases: int) -> int | None:
    """Return a pinned version that should get a base of its own; None if there is none.

    Until then the base before it and the segments between are kept, which costs no work. The newest `keep_bases` bases
    keep their segments anyway.
    """
    pins, bases = read_pins(directory.path), [read_base_manifest(path) for path in complete_bases(directory)]
    if not pins or not bases:
        return None
    index, oldest_recent = LogIndex(directory), groups_of_equal_bases(bases)[-keep_bases:][0][0]
    sizes = {base.number: base.num_bytes for base in bases}
    starts = {pin.version: index.runs.base_of(pin.version) for pin in pins}
    for version in sorted(starts, reverse=True):
        base = starts[version]
        if base not in sizes or base == version or version > oldest_recent or not is_exact(index, version, base):
            continue
        others = [(start, end) for end, start in starts.items() if start is not None and end != version]
        needed = {
            entry.frame.path
            for start, end in [*others, (oldest_recent, index.numbers[-1])]
            for entry in index.entries_between(start, end)
        }
        alone = {entry.frame.path for entry in index.entries_between(base, version)} - needed
        if sum(map(size_of, alone)) > sizes[base]:
            return version
    return None


def is_exact(index: LogIndex, version: int, base: int) -> bool:
    """Return True if records and base hold the exact state of the net: of a large one, only some versions have it."""
    return 0 <= index.meta(version).exact_state <= base


def write_pinned_base(
    directory: LogDirectory,
    version: int,
    *,
    window_samples: int,
    onnx: OnnxBuilder | None = None,
    base_files: int = 0,
) -> None:
    """Write the base of a version that can be rebuilt, or one on the way there if there is much to replay.

    LogError if the log cannot be read up to it.
    """
    index = LogIndex(directory)
    base = index.base_before(version)
    base.verify(exports=False)  # the new base gets new checksums of the others
    state = ReplayState(base, window_samples=window_samples)
    for record in VersionRange(index, base.head.number, version).records():
        state.apply(record)
        if state.num_bytes >= MAX_REPLAYED_BYTES:
            break
    write_merged_base(directory.path, state, onnx, base_files=base_files)


class Compactor:
    """Writes the next base when one is due. If several run on one machine, one works and the others wait."""

    def __init__(self, config: LogConfig, *, window_samples: int = WINDOW_SAMPLES) -> None:
        self.config = config
        self.directory = LogDirectory(config.path)
        self.budget = DiskBudget(config.log_bytes)
        self._window_samples = window_samples
        self._onnx = OnnxBuilder() if config.onnx and is_possible() else None
        self._pending = PendingVersions(self.directory)
        self._tried_at = 0.0
        self._tried_after = 0
        self._pins: list[str] | None = None  # at the last retention

    def is_due(self) -> bool:
        """Return True if there is something to compact, and enough time has passed or enough bytes have come.

        Heartbeats alone make no base until there are so many that followers would be slow to read them.
        """
        bases = complete_bases(self.directory)
        if not bases:
            return False
        manifest = read_base_manifest(bases[-1])
        pending_bytes, is_idle = self._pending.after(manifest.number)
        if not pending_bytes or time.time() - self._tried_at < POLL_SECONDS:
            return False
        started = manifest.created_ms / 1000
        if self._tried_after == manifest.number:  # the last attempt found nothing durable
            started = max(started, self._tried_at)
        if is_idle and self.budget.free_bytes(LogUsage.of(self.config.path)) >= 0:
            return pending_bytes > min(IDLE_BYTES, self.budget.max_version_bytes)
        if time.time() - started >= self.config.base_minutes * 60:
            return True
        if pending_bytes > max(SEGMENT_BYTES, manifest.num_bytes):
            return True
        usage = LogUsage.of(self.config.path)
        if self.budget.free_bytes(usage) < 0:  # the trainer waits for it
            return time.time() - started >= FULL_SECONDS or pending_bytes > self.budget.max_version_bytes
        # with little space left a base is due sooner, but it must free something, or it would only take more
        return self.budget.is_short(usage) and pending_bytes > self.budget.max_version_bytes

    def compact(self) -> Path | None:
        """Write the next base now and apply retention; None if no newer version is durable."""
        bases = self.directory.bases()
        self._tried_at, self._tried_after = time.time(), base_number(bases[-1]) if bases else 0
        if self.budget.is_short(LogUsage.of(self.config.path)):
            self.apply_retention()  # the oldest bases by rule go first
        if self.budget.is_short(LogUsage.of(self.config.path)):  # makes room for the next one
            apply_retention(self.directory, 1, rule=self.config.keep_rule, log_bytes=self.config.log_bytes)
        path = compact_log(
            self.directory,
            window_samples=self._window_samples,
            onnx=self._onnx,
            base_files=self.config.base_files,
        )
        if path is not None:
            logger.info("base written", extra={"base": path.name})
        self.apply_retention()
        return path

    def apply_retention(self) -> None:
        """Delete what is kept no longer; first write a base of a pinned version where that frees more than it takes."""
        config, self._pins = self.config, pin_names(self.config.path)
        while self._pins and (due := pinned_base_due(self.directory, keep_bases=config.keep_bases)) is not None:
            write_pinned_base(
                self.directory,
                due,
                window_samples=self._window_samples,
                onnx=self._onnx,
                base_files=config.base_files,
            )
        num_bases = self.budget.num_bases(LogUsage.of(config.path), config.keep_bases)
        apply_retention(self.directory, num_bases, rule=config.keep_rule, log_bytes=config.log_bytes)

    def run(self, stopping: threading.Event) -> None:
        """Compact whenever it is due, until `stopping` is set. Waits first while another compactor has the lock."""
        lock_path = self.config.path / LOCK_NAME
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(lock_path, lambda: stopping.wait(POLL_SECONDS)) as is_held:
            if is_held:
                remove_drafts(self.directory)
            while not stopping.wait(POLL_SECONDS):
                try:
                    while self.is_due() and self.compact() and not stopping.is_set():
                        pass
                    if self._pins != pin_names(self.config.path):  # at the start too: the configuration may be new
                        self.apply_retention()
                except (LogError, OSError) as error:
                    # retried at the next poll; a full disk may have room by then
                    logger.warning("no base could be written", extra={"reason": str(error)})
