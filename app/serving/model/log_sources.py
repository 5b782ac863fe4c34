"""The log as the replica follows it: the shard records of its part of the rows, to its end or up to one version."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.serving.model.served_view import Part
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionRange
from springtide_client.errors import LogError
from springtide_client.format.records import Head, Record
from springtide_client.log.base import read_base_manifest
from springtide_client.log.cursor import LogCursor
from springtide_client.log.directory import LogDirectory


class LogOfPart(LogDirectory):
    """A log's folder, whose cursors read the shard records that a part of the rows needs."""

    def __init__(self, path: Path, part: Part) -> None:
        super().__init__(path)
        self._part = part

    def follow(self, after: Head | None) -> LogCursor:
        base = self.newest_base()
        if base is not None and not self._part.holds_all:
            with suppress(FileNotFoundError, LogError):  # deleted or damaged meanwhile: all records are read
                return LogDirectory(self.path, self._part.shard_choice(read_base_manifest(base))).follow(after)
        return super().follow(after)


class LogUpTo:
    """A LogSource that ends at one version. Once that is served, retention may delete its files."""

    def __init__(self, path: Path, version: int) -> None:
        self._directory, self._version = LogDirectory(path), version

    def newest_base(self) -> Path | None:
        """Return the newest base from which the version can be rebuilt; LogError where there is none any more."""
        if self._directory.newest_base() is None:
            return None
        try:
            return LogIndex(self._directory).base_before(self._version).path
        except UserError as error:
            raise LogError(str(error)) from None

    def bases_before(self, than: Path) -> list[Path]:
        return []

    def local_base(self) -> Path | None:
        return None

    def follow(self, after: Head | None) -> "RecordsUpTo":
        """Return a cursor that raises LogError where the log does not lead to the version."""
        assert after is not None
        return RecordsUpTo(VersionRange(LogIndex(self._directory), after.number, self._version).records())


class RecordsUpTo:
    """A RecordCursor over some records."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records

    def read(self) -> Sequence[Record]:
        return [record] if (record := next(self._records, None)) is not None else []

    def close(self) -> None:
        self._records = iter(())
