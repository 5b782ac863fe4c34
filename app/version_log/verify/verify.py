"""Reads a whole log and compares everything in it with everything else: what a reader would trip over is told."""

from collections.abc import Callable
from itertools import pairwise

from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory

from app.errors import UserError
from app.version_log.read.index import LogIndex
from app.version_log.read.version_range import RANGE_BYTES
from app.version_log.verify.bases import BaseCheck
from app.version_log.verify.inventory import LogInventory, check_inventory
from app.version_log.verify.records import RecordCheck
from app.version_log.verify.replay import ReplayCheck
from app.version_log.verify.report import ERROR, NOTE, Finding, VerifyReport

MAX_ATTEMPTS = 3


def verify(
    directory: LogDirectory,
    *,
    deep: bool = False,
    range_bytes: int = RANGE_BYTES,
    tell: Callable[[Finding], object] = lambda _: None,
) -> VerifyReport:
    """1. Folder. 2. Bases. 3. Records. 4. `deep`: each base against the log before it. Tells each finding at once.

    A trainer and a merger may be at work meanwhile: where files went away under a look that found damage, it is
    repeated. UserError where there is no log.
    """
    listing = directory.scan()
    if not listing.claimed_epoch and not listing.manifest_epoch:
        raise UserError(f"there is no log in {directory.path} yet: `springtide run` begins one")
    folder = LogInventory.of(directory)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        # what is wrong waits: it may be a retirement seen half done
        findings = VerifyReport(lambda finding: tell(finding) if finding.level != ERROR else None)
        check_everything(directory, folder, findings, deep=deep, range_bytes=range_bytes)
        now = LogInventory.of(directory)
        if not findings.errors or now.has_same_files(folder) or attempt == MAX_ATTEMPTS:
            break
        folder = now
        tell(Finding(NOTE, "files came and went meanwhile: once more"))
    for finding in findings.errors:
        tell(finding)
    return findings


def check_everything(
    directory: LogDirectory, folder: LogInventory, findings: VerifyReport, *, deep: bool, range_bytes: int
) -> None:
    """Once through all of it."""
    manifest = check_inventory(folder, findings)
    check = BaseCheck(folder, findings)
    manifests = check.manifests()
    bases = [check.check(manifest, deep=deep) for manifest in manifests]
    if not folder.listing.bases:
        findings.note("there is no base: a trainer has not begun, or died beginning")
    if manifest is None:
        if folder.listing.manifest_epoch:
            findings.note("without the newest manifest nobody knows which records count: they were not read")
        return
    num_wrong = len(findings.errors)
    RecordCheck(folder, manifest, manifests, findings).run()
    if deep:
        whole = [base for base in bases if base is not None]
        if len(findings.errors) > num_wrong:
            findings.note("records are damaged: bases are replayed only where the log can be read")
        check_replays(directory, whole, findings, range_bytes)


def check_replays(directory: LogDirectory, bases: list[Base], findings: VerifyReport, range_bytes: int) -> None:
    """Every base but the oldest against the one before it."""
    if bases:
        name = version_name(bases[0].tip.number)
        findings.note(f"base {name} is the oldest: nothing before it is left to replay")
    index = LogIndex(directory)
    for older, newer in pairwise(bases):
        try:
            ReplayCheck(index, older, newer, findings).run(range_bytes)
        except LogError as error:
            findings.note(f"base {version_name(newer.tip.number)} cannot be replayed: {error}")
