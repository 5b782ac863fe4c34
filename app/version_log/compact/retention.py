"""Retention: delete bases beyond the newest few, and segments that the oldest retained base covers."""

import contextlib
import logging
import os
import shutil
from pathlib import Path

from springtide_client.format.records import EPOCH_SHIFT
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import Listing, LogManifest, base_name, base_number

from app.version_log.compact.base_writer import is_complete
from app.version_log.failpoints import failpoint
from app.version_log.read.segments import HEADERS_ONLY, scan_segment

logger = logging.getLogger(__name__)


def apply_retention(directory: LogDirectory, keep_bases: int) -> list[str]:
    """1. Delete older bases. 2. Delete segments covered by the oldest retained base. Returns the deleted names.

    A process that has a deleted file open or mapped can read on. Does nothing while an epoch starts.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    if manifest is None or not listing.is_settled:
        return []
    retained = complete_bases(directory)[-keep_bases:]
    if not retained:
        return []
    deleted = [path.name for path in directory.bases() if base_number(path) < base_number(retained[0])]
    for name in deleted:
        delete_base(directory.path / name)
    failpoint("during retention")
    for name in covered_segments(directory, listing, manifest, base_number(retained[0])):
        (directory.path / name).unlink(missing_ok=True)
        deleted.append(name)
    if deleted:
        logger.info("bases and segments deleted", extra={"names": deleted})
    return deleted


def delete_base(base_path: Path) -> None:
    """Delete a base. It is renamed first, so that readers see all of it or none."""
    renamed = base_path.with_name(f".tmp-deleted-{base_path.name}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        base_path.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def complete_bases(directory: LogDirectory) -> list[Path]:
    """Return the bases, oldest first, whose manifest can be read and whose files have the right sizes."""
    return [path for path in directory.bases() if is_complete(path)]


def covered_segments(directory: LogDirectory, listing: Listing, manifest: LogManifest, number: int) -> list[str]:
    """Return the segments that hold no readable record after `number`, and those that readers ignore.

    The newest file of the present epoch is never among them.
    """
    files = directory.readable_segments(listing, manifest)
    own = listing.segments.get(manifest.epoch, [])
    covered = []
    for name, limit in files:
        last = max(
            (header.number for header, _ in scan_segment(directory.path / name, limit, verify_after=HEADERS_ONLY)),
            default=0,
        )
        if last > number:
            break
        if not own or name != own[-1]:
            covered.append(name)
    readable = {name for name, _ in files}
    # segments of older epochs that no manifest lists were written by a replaced trainer
    older = [name for epoch, names in listing.segments.items() if epoch < manifest.epoch for name in names]
    return covered + [name for name in older if name not in readable]


def remove_drafts(directory: LogDirectory) -> None:
    """Delete what a killed compactor left. Call it with the compactor lock held.

    What the newest trainer may be writing is left alone: the first base of a log, or of a changed schema.
    """
    if directory.bases():
        begin = base_name(directory.scan().claimed_epoch << EPOCH_SHIFT)
        for pattern in (".tmp-base-*", ".tmp-deleted-*"):
            for path in directory.path.glob(pattern):
                if not path.name.startswith(f".tmp-{begin}"):
                    shutil.rmtree(path, ignore_errors=True)
