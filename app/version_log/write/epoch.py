"""Start a trainer's epoch: claim the next number, find out what can be read of the log, and seal it.

Claims fence: once a higher epoch is claimed, readers ignore what an older trainer still writes.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import Tip
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import LogManifest, SealedSegment, claim_name, manifest_name
from springtide_client.schema import Schema
from springtide_client.system.files import fsync_folder, make_durable_folder, write_atomically

from app.version_log.errors import FencedError, OtherSchemaError
from app.version_log.failpoints import failpoint
from app.version_log.read.segments import scan_segment
from app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock

EPOCHS_RETAINED = 5  # status files and manifests of older epochs are deleted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """A started epoch: its manifest is published and its lock held."""

    number: int
    manifest: LogManifest
    lock: TrainerLock


@dataclass(frozen=True)
class ValidLog:
    """The part of a log that can be read: how long each segment is, the newest base, and the last version."""

    sealed: list[SealedSegment]
    base: Tip | None
    tip: Tip | None


def start_epoch(
    log_path: Path, schema: Schema, *, take_over: bool = False, wait_seconds: float = WAIT_SECONDS
) -> Epoch:
    """1. Lock. 2. Claim. 3. Measure what can be read. 4. fsync it. 5. Publish the manifest that seals it.

    The claim comes before the measuring, because readers check for claims before they use what they have read: what the
    predecessor appends after the measuring is never used. LogBusyError if another trainer runs.
    """
    make_durable_folder(log_path)
    directory = LogDirectory(log_path)
    check_schema(directory, schema)
    lock = TrainerLock.acquire(log_path, take_over=take_over, wait_seconds=wait_seconds)
    try:
        number = claim_epoch(directory)
        failpoint("after a claim")
        valid = measure_valid_log(directory)
        for segment in valid.sealed:
            sync_file(log_path / segment.file)
        manifest = LogManifest(
            epoch=number,
            sealed=valid.sealed,
            base=valid.base,
            tip=valid.tip,
            schema=msgspec.to_builtins(schema),
            fingerprint=schema.fingerprint(),
        )
        failpoint("before a manifest")
        write_atomically(log_path / manifest_name(number), encode_checksummed_json(manifest))
        failpoint("after a manifest")
        if directory.is_fenced(number):
            raise FencedError(f"another trainer started at the same time and took epoch {number + 1}")
    except BaseException:
        lock.release()
        raise
    remove_old_epochs(directory, number)
    return Epoch(number, manifest, lock)


def check_schema(directory: LogDirectory, schema: Schema) -> None:
    """Raise OtherSchemaError if the log was written with another schema: its rows would belong to other features."""
    listing = directory.scan()
    manifest = directory.manifest(listing)
    if manifest is not None and listing.bases and manifest.fingerprint != schema.fingerprint():
        raise OtherSchemaError(
            f"the log {directory.path} was written with another [schema]: set another [log] path or restore it"
        )


def claim_epoch(directory: LogDirectory) -> int:
    """Claim the next epoch by exclusive creation of its file. Claims have no gaps and are never deleted."""
    while True:
        number = directory.scan().claimed_epoch + 1
        try:
            os.close(os.open(directory.path / claim_name(number), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            continue
        fsync_folder(directory.path)
        return number


def measure_valid_log(directory: LogDirectory) -> ValidLog:
    """Follow the records of the newest manifest's files, parent by parent, from the newest base that opens.

    LogError if the log has records but no base.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    base = directory.open_base()
    if base is None:
        if any(listing.segments.values()) or (manifest is not None and manifest.tip is not None):
            raise LogError(f"the log {directory.path} has lost its bases: restore them, or set another [log] path")
        return ValidLog([], None, None)
    tip, sealed = base.tip, []
    for file, limit in directory.readable_segments(listing, manifest) if manifest is not None else []:
        valid_bytes = 0
        for header, end in scan_segment(directory.path / file, limit, verify_after=base.tip.number):
            if header.number > base.tip.number and header.tip != tip:
                if header.parent != tip.checksum or header.number < tip.number:
                    break
                tip = header.tip
            valid_bytes = end
        if valid_bytes:
            sealed.append(SealedSegment(file, valid_bytes))
        _log_ignored_bytes(directory.path / file, limit, valid_bytes)
    return ValidLog(sealed, base.tip, tip)


def _log_ignored_bytes(path: Path, limit: int | None, valid_bytes: int) -> None:
    try:
        ignored = (path.stat().st_size if limit is None else limit) - valid_bytes
    except FileNotFoundError:
        return
    if ignored:
        # half a record at the end of the last file is normal after a kill or power loss; anything else is corruption
        extra = {"file": path.name, "bytes": ignored, "valid_bytes": valid_bytes}
        logger.warning("a segment ends in bytes that are not part of the log", extra=extra)


def sync_file(path: Path) -> None:
    """fsync a file; one that the compactor has deleted meanwhile needs none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_old_epochs(directory: LogDirectory, number: int) -> None:
    """Delete the status files and manifests of epochs that nothing reads any more."""
    for epoch in range(number - 2 * EPOCHS_RETAINED, number - EPOCHS_RETAINED):
        for name in (manifest_name(epoch), f"status-{epoch:010d}.json"):
            if epoch > 0:
                (directory.path / name).unlink(missing_ok=True)
