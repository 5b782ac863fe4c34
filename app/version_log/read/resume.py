"""What a trainer begins with: the newest base and every version between it and the end of the past."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from springtide_client.errors import LogError
from springtide_client.format.records import Record, Tip, VersionMeta
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory

from app.version_log.failpoints import failpoint


@dataclass
class Resume:
    """Apply `base`, then each of `records()`. Read to the end, `meta` and `orders` are those of the past's end."""

    base: Base
    tip: Tip
    directory: LogDirectory
    meta: VersionMeta = field(init=False)
    executed_commands: dict[str, int] = field(init=False)  # executed: id -> the version that says so
    erasure_entries: list[dict[str, Any]] = field(init=False)  # of those, what the log says of the ones that forgot

    def __post_init__(self) -> None:
        self.meta = self.base.manifest.meta
        self.executed_commands, self.erasure_entries = {}, []
        self._note(self.base.tip.number, self.meta)

    @staticmethod
    def of(directory: LogDirectory, past: Tip | None) -> "Resume | None":
        """`past` is the writer's; None in a new log."""
        if past is None:
            return None
        base = directory.open_base()
        if base is None or base.tip.number > past.number:
            raise LogError(f"the log {directory.path} has no base at or before its end {past}")
        return Resume(base, past, directory)

    def records(self) -> Iterator[Record]:
        """Each version after the base, exactly up to the past's end; LogError where one of them cannot be read."""
        tip = self.base.tip
        for record in self.directory.records(tip):
            failpoint("while the log is replayed")
            self._note(record.number, record.meta)
            self.meta, tip = record.meta, record.tip
            yield record
            if tip.number >= self.tip.number:
                break
        if tip != self.tip:
            raise LogError(f"the log {self.directory.path} cannot be read up to {self.tip}: it ends at {tip}")

    def _note(self, number: int, meta: VersionMeta) -> None:
        for order in meta.executed_commands:
            self.executed_commands[str(order.get("id"))] = number
            if order.get("kind") == "forget":
                self.erasure_entries.append(order)
