"""Verify a log: read all of it and check everything in it against everything else that readers rely on."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from springtide.app.errors import UserError
from springtide.app.version_log.kept_versions import END_OF_LOG, FOLDER, Pin, kept_versions, pin_path, read_pins
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import RANGE_BYTES
from springtide.app.version_log.verify.bases import BaseCheck
from springtide.app.version_log.verify.inventory import LogInventory, check_inventory
from springtide.app.version_log.verify.records import RecordCheck
from springtide.app.version_log.verify.replay import ReplayCheck
from springtide.app.version_log.verify.report import ERROR, NOTE, Finding, VerifyReport, plural
from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.log.base import Base, BaseManifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import begins_epoch

MAX_ATTEMPTS = 3
KEEP_BASES = 2  # as in [log]


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
            if index is None or not index.is_restorable(pin.version) or index.head(pin.version) != pin.head:
                what = f"version {version}, which is pinned as {pin.name}, cannot be rebuilt"
                self._report.error(name, None, what, "restore its base and segments from a copy, or unpin it")
                num_wrong += 1
        if self._pins and not num_wrong:
            self._report.ok(f"{plural(len(self._pins), 'pin')}: each version can be rebuilt")


def verify(
    directory: LogDirectory,
    *,
    deep: bool = False,
    keep_bases: int = KEEP_BASES,
    range_bytes: int = RANGE_BYTES,
    on_finding: Callable[[Finding], object] = lambda _: None,
) -> VerifyReport:
    """1. Inventory. 2. Bases. 3. Records. 4. Pins. 5. If `deep`: each base against the log before it.

    Since the oldest of the newest `keep_bases` bases no version may be missing, nor one that a pinned version needs.
    `on_finding` is called with each finding. A trainer and a compactor may run meanwhile: if files went away during a
    pass that found errors, the pass is repeated. UserError if there is no log.
    """
    listing = directory.scan()
    if not listing.claimed_epoch and not listing.manifest_epoch:
        raise UserError(f"there is no log in {directory.path} yet: `springtide run` starts one")
    inventory = LogInventory.of(directory)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        # errors are reported at the end: an error may be a deletion by the compactor seen half done
        report = VerifyReport(lambda finding: on_finding(finding) if finding.level != ERROR else None)
        check_everything(directory, inventory, report, deep=deep, keep_bases=keep_bases, range_bytes=range_bytes)
        now = LogInventory.of(directory)
        if not report.errors or now.has_same_files(inventory) or attempt == MAX_ATTEMPTS:
            break
        inventory = now
        on_finding(Finding(NOTE, "files were added and deleted meanwhile: starting again"))
    for finding in report.errors:
        on_finding(finding)
    return report


def check_everything(
    directory: LogDirectory,
    inventory: LogInventory,
    report: VerifyReport,
    *,
    deep: bool,
    keep_bases: int,
    range_bytes: int,
) -> None:
    """Make one pass over the whole log."""
    manifest = check_inventory(inventory, report)
    check = BaseCheck(inventory, manifest, report)
    manifests = check.manifests()
    bases = [check.check(manifest, deep=deep) for manifest in manifests]
    check.report_problems(directory, manifests)
    if not inventory.listing.bases:
        report.note("there is no base: no trainer has started, or it died while starting")
    if manifest is None:
        if inventory.listing.manifest_epoch:
            report.note("the records were not read: only the newest manifest says which belong to the log")
        return
    num_wrong = len(report.errors)
    pins = PinCheck(directory, report)
    RecordCheck(inventory, manifest, manifests, report, pins.needed_ranges(manifests, keep_bases)).run()
    pins.run()
    if deep:
        whole = [base for base in bases if base is not None and check.has_sound_rows(base)]
        if len(report.errors) > num_wrong:
            report.note("records are corrupt: a base is replayed only if the log can be read up to it")
        check_replays(directory, whole, report, range_bytes)


def check_replays(directory: LogDirectory, bases: list[Base], report: VerifyReport, range_bytes: int) -> None:
    """Check every base but the oldest against the one before it."""
    if bases:
        name = version_name(bases[0].head.number)
        report.note(f"base {name} is the oldest: nothing before it is left to replay it from")
    index = LogIndex(directory)
    for older, newer in pairwise(bases):
        if begins_epoch(newer.head.number):
            report.note(f"base {version_name(newer.head.number)} begins a changed schema: it equals no earlier version")
            continue
        try:
            ReplayCheck(index, older, newer, report).run(range_bytes)
        except LogError as error:
            report.note(f"base {version_name(newer.head.number)} cannot be replayed: {error}")
