"""Check that every pinned version can be rebuilt, and say which records retention must have kept."""

from collections.abc import Sequence

from springtide.app.errors import UserError
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.retention.keep_rule import END_OF_LOG, kept_versions
from springtide.app.version_log.retention.pins import FOLDER, Pin, pin_path, read_pins
from springtide.app.version_log.verify.report import VerifyReport, plural
from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.log.base import BaseManifest
from springtide_client.log.directory import LogDirectory


class PinCheck:
    """Checks the pins of a log."""

    def __init__(self, directory: LogDirectory, report: VerifyReport) -> None:
        self._directory, self._report = directory, report
        self._pins: list[Pin] = []
        self._index: LogIndex | None = None
        try:
            self._pins = read_pins(directory.path)
            self._index = LogIndex(directory)
        except LogError as error:
            report.error(FOLDER, None, str(error), "the compactor deletes nothing: unpin the name, or restore the file")
        except UserError:  # a log without a version
            return

    def needed_ranges(self, bases: Sequence[BaseManifest], keep_bases: int) -> tuple[tuple[int, int], ...]:
        """Return after and up to which versions no record may be missing; `bases`: oldest first."""
        index = self._index
        if index is None or not bases:
            return ((0, END_OF_LOG),)
        starts = {index.runs.base_of(pin.version) for pin in self._pins}
        kept = kept_versions(
            bases, keep_bases=keep_bases, by_rule=frozenset(), pins=self._pins, base_of=index.runs.base_of
        )
        ends = {pin.version for pin in self._pins} | {END_OF_LOG}
        # a base that a pin needs may be among the newest only because there are few others
        return tuple((after, end) for after, end in kept.ranges if end in ends or after not in starts)

    def run(self) -> None:
        """Report each pin whose version is missing or another, or cannot be rebuilt."""
        num_wrong, index = 0, self._index
        for pin in self._pins:
            name, version = f"{FOLDER}/{pin_path(self._directory.path, pin.name).name}", version_name(pin.version)
            if index is None or not index.is_restorable(pin.version) or index.tip(pin.version) != pin.tip:
                what = f"version {version}, which is pinned as {pin.name}, cannot be rebuilt"
                self._report.error(name, None, what, "restore its base and segments from a copy, or unpin it")
                num_wrong += 1
        if self._pins and not num_wrong:
            self._report.ok(f"{plural(len(self._pins), 'pin')}: each version can be rebuilt")
