"""Resumes a starting trainer from the newest base and every version between it and the end of the log."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.read.exact_state import find_state
from springtide_client.errors import LogError
from springtide_client.format.records import CommandEntry, Record, Tip, VersionMeta, version_name
from springtide_client.format.tensors import Arrays, map_tensors
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory


@dataclass
class Resume:
    """Apply `base`, then each of `records()`. Once those are read, the other fields describe the end of the log."""

    base: Base
    tip: Tip  # the end of the log
    directory: LogDirectory
    read_already: deque[Record] = field(default_factory=deque)  # the first of the records; they are taken out
    meta: VersionMeta = field(init=False)
    executed_commands: dict[str, int] = field(init=False)  # command id -> the version that carries it
    erasure_entries: list[CommandEntry] = field(init=False)  # the `forget` commands among them
    _tips: dict[int, Tip] = field(init=False)  # the versions whose exact state is beside the log

    def __post_init__(self) -> None:
        self.meta, self._tips = self.base.manifest.meta, {}
        self.executed_commands, self.erasure_entries = {}, []
        self._add_commands(self.base.tip.number, self.meta)

    @staticmethod
    def of(directory: LogDirectory, tip: Tip | None, read_already: deque[Record] | None = None) -> "Resume | None":
        """Open the newest base for a log that ends at `tip`; None in a new log. LogError if no base opens.

        `read_already`: versions up to `tip` in order, which need not be read and verified again.
        """
        if tip is None:
            return None
        base = directory.open_base()
        if base is None or base.tip.number > tip.number:
            raise LogError(f"the log {directory.path} has no base at or before its end {tip}")
        return Resume(base, tip, directory, deque() if read_already is None else read_already)

    def records(self) -> Iterator[Record]:
        """Yield each version after the base, up to the end of the log; LogError if one of them cannot be read."""
        tip = self.base.tip
        for record in self._versions(tip):
            failpoint("while the log is replayed")
            self._add_commands(record.number, record.meta)
            self.meta, tip = record.meta, record.tip
            if record.meta.exact_state == record.number:
                self._tips[record.number] = record.tip
            yield record
            if tip.number >= self.tip.number:
                break
        if tip != self.tip:
            raise LogError(f"the log {self.directory.path} cannot be read up to {self.tip}: it ends at {tip}")

    def _versions(self, tip: Tip) -> Iterator[Record]:
        while self.read_already:
            record = self.read_already.popleft()
            if record.parent == tip.checksum:  # not one that the newest base covers
                yield record
                tip = record.tip
        yield from self.directory.records(tip)

    def read_state(self, number: int) -> Arrays:
        """Return the exact state of the net at a version whose record was yielded; LogError if it is gone."""
        file = find_state(self.directory.path, self._tips[number])
        if file is None:
            raise LogError(f"the exact state of version {version_name(number)} is gone from {self.directory.path}")
        return map_tensors(file)

    def _add_commands(self, number: int, meta: VersionMeta) -> None:
        for entry in meta.executed_commands:
            self.executed_commands[entry.id] = number
            if entry.kind == "forget":
                self.erasure_entries.append(entry)
