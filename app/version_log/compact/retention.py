"""Takes away what nobody can need: bases beyond the newest few, segments that the oldest kept base covers."""

import contextlib
import logging
import os
import shutil
from pathlib import Path

from springtide_client.log.directory import Listing, LogDirectory, LogManifest

from app.version_log.compact.base_writer import is_complete
from app.version_log.failpoints import failpoint
from app.version_log.read.segments import scan_segment

logger = logging.getLogger(__name__)


def apply_retention(directory: LogDirectory, keep_bases: int) -> list[str]:
    """1. Older bases. 2. Segments covered by the oldest kept base. Returns the names that went.

    Only unlinks; who has one open or mapped reads on. Does nothing while an epoch starts.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    if manifest is None or not listing.is_settled:
        return []
    kept = complete_bases(directory)[-keep_bases:]
    if not kept:
        return []
    gone = [path.name for path in directory.bases() if base_number(path) < base_number(kept[0])]
    for name in gone:
        delete_base(directory.path / name)
    failpoint("during retention")
    for name in covered_segments(directory, listing, manifest, base_number(kept[0])):
        (directory.path / name).unlink(missing_ok=True)
        gone.append(name)
    if gone:
        logger.info("retired", extra={"names": gone})
    return gone


def delete_base(base_path: Path) -> None:
    """A base is seen whole or not at all: it is renamed first."""
    grave = base_path.with_name(f".tmp-retired-{base_path.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        base_path.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)


def complete_bases(directory: LogDirectory) -> list[Path]:
    """The bases, oldest first, whose manifest and files' sizes are as they should be."""
    return [path for path in directory.bases() if is_complete(path)]


def covered_segments(directory: LogDirectory, listing: Listing, manifest: LogManifest, number: int) -> list[str]:
    """Segments of which no record after `number` counts. The newest file of the present epoch is never among them."""
    files = directory.readable_segments(listing, manifest)
    own = listing.segments.get(manifest.epoch, [])
    covered = []
    for name, limit in files:
        last = max(
            (header.number for header, _ in scan_segment(directory.path / name, limit, verify_after=2**63)), default=0
        )
        if last > number:
            break
        if not own or name != own[-1]:
            covered.append(name)
    counting = {name for name, _ in files}
    # bytes of older epochs that no manifest lists: a replaced trainer's
    older = [name for epoch, names in listing.segments.items() if epoch < manifest.epoch for name in names]
    return covered + [name for name in older if name not in counting]


def base_number(path: Path) -> int:
    """The version that a base's folder equals."""
    return int(path.name.removeprefix("base-"))


def remove_drafts(directory: LogDirectory) -> None:
    """What a merger left that was killed: called by the only one that runs, in a log that has a base already."""
    if directory.bases():
        for pattern in (".tmp-base-*", ".tmp-retired-*"):
            for path in directory.path.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
