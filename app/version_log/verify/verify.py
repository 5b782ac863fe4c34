"""Reads a whole log and compares everything in it with everything else: what a reader would trip over is told."""

from collections.abc import Callable
from itertools import pairwise

from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory

from app.errors import UserError
from app.version_log.read.index import LogIndex
from app.version_log.read.version_range import PART_BYTES
from app.version_log.verify.bases import BaseCheck
from app.version_log.verify.inventory import Folder, check_folder
from app.version_log.verify.records import RecordCheck
from app.version_log.verify.replay import Replay
from app.version_log.verify.report import NOTE, WRONG, Finding, Findings

ATTEMPTS = 3


def verify(
    directory: LogDirectory,
    *,
    deep: bool = False,
    part_bytes: int = PART_BYTES,
    tell: Callable[[Finding], object] = lambda _: None,
) -> Findings:
    """1. Folder. 2. Bases. 3. Records. 4. `deep`: each base against the log before it. Tells each finding at once.

    A trainer and a merger may be at work meanwhile: where files went away under a look that found damage, it is
    repeated. UserError where there is no log.
    """
    listing = directory.scan()
    if not listing.claimed_epoch and not listing.manifest_epoch:
        raise UserError(f"there is no log in {directory.path} yet: `springtide run` begins one")
    folder = Folder.of(directory)
    for attempt in range(1, ATTEMPTS + 1):
        # what is wrong waits: it may be a retirement seen half done
        findings = Findings(lambda finding: tell(finding) if finding.level != WRONG else None)
        look(directory, folder, findings, deep=deep, part_bytes=part_bytes)
        now = Folder.of(directory)
        if not findings.wrong or now.is_as(folder) or attempt == ATTEMPTS:
            break
        folder = now
        tell(Finding(NOTE, "files came and went meanwhile: once more"))
    for finding in findings.wrong:
        tell(finding)
    return findings


def look(directory: LogDirectory, folder: Folder, findings: Findings, *, deep: bool, part_bytes: int) -> None:
    """Once through all of it."""
    manifest = check_folder(folder, findings)
    check = BaseCheck(folder, findings)
    manifests = check.manifests()
    bases = [check.check(manifest, deep=deep) for manifest in manifests]
    if not folder.listing.bases:
        findings.note("there is no base: a trainer has not begun, or died beginning")
    if manifest is None:
        if folder.listing.manifest_epoch:
            findings.note("without the newest manifest nobody knows which records count: they were not read")
        return
    num_wrong = len(findings.wrong)
    RecordCheck(folder, manifest, manifests, findings).run()
    if deep:
        whole = [base for base in bases if base is not None]
        if len(findings.wrong) > num_wrong:
            findings.note("records are damaged: bases are replayed only where the log can be read")
        replay(directory, whole, findings, part_bytes)


def replay(directory: LogDirectory, bases: list[Base], findings: Findings, part_bytes: int) -> None:
    """Every base but the oldest against the one before it."""
    if bases:
        name = version_name(bases[0].tip.number)
        findings.note(f"base {name} is the oldest: nothing before it is left to replay")
    index = LogIndex(directory)
    for older, newer in pairwise(bases):
        try:
            Replay(index, older, newer, findings).run(part_bytes)
        except LogError as error:
            findings.note(f"base {version_name(newer.tip.number)} cannot be replayed: {error}")
