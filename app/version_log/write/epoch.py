"""The start of a trainer: an epoch of its own, and a seal on what its predecessor left."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import Tip
from springtide_client.log.directory import (
    LogDirectory,
    LogManifest,
    SealedSegment,
    claim_name,
    manifest_name,
)
from springtide_client.schema import Schema
from springtide_client.system.files import fsync_folder, make_durable_folder, write_atomically

from app.version_log.errors import FencedError, OtherSchemaError
from app.version_log.failpoints import failpoint
from app.version_log.write.segments import scan_segment
from app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock

EPOCHS_RETAINED = 5  # statuses and manifests of older ones are removed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """A started epoch: its manifest is published, its lock held."""

    number: int
    manifest: LogManifest
    lock: TrainerLock


@dataclass(frozen=True)
class ValidLog:
    """What can be read of a log."""

    sealed: list[SealedSegment]
    base: Tip | None
    tip: Tip | None


def start_epoch(
    log_path: Path, schema: Schema, *, take_over: bool = False, wait_seconds: float = WAIT_SECONDS
) -> Epoch:
    """1. Lock. 2. Claim. 3. Measure what can be read. 4. fsync it. 5. Publish the manifest that seals it.

    The claim comes before the measuring: whoever reads looks for claims before using what was read, so nothing that
    the predecessor appends after it was measured is ever used. LogBusyError where another trainer lives.
    """
    make_durable_folder(log_path)
    directory = LogDirectory(log_path)
    check_schema(directory, schema)
    lock = TrainerLock.acquire(log_path, take_over=take_over, wait_seconds=wait_seconds)
    try:
        number = claim_epoch(directory)
        failpoint("after a claim")
        past = measure_valid_log(directory)
        for sealed in past.sealed:
            sync_file(log_path / sealed.file)
        manifest = LogManifest(
            epoch=number,
            sealed=past.sealed,
            base=past.base,
            tip=past.tip,
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
    """OtherSchemaError where the log was written with another schema: its rows would be taken for other features'."""
    listing = directory.scan()
    manifest = directory.manifest(listing)
    if manifest is not None and listing.bases and manifest.fingerprint != schema.fingerprint():
        raise OtherSchemaError(
            f"the log {directory.path} was written with another [schema]: name another [log] path, or go back to it"
        )


def claim_epoch(directory: LogDirectory) -> int:
    """The next epoch, exclusively. Claims have no gaps and are never removed."""
    while True:
        number = directory.scan().claimed_epoch + 1
        try:
            os.close(os.open(directory.path / claim_name(number), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            continue
        fsync_folder(directory.path)
        return number


def measure_valid_log(directory: LogDirectory) -> ValidLog:
    """How far the files of the newest manifest link up, record by record, from the newest base that can be opened."""
    listing = directory.scan()
    manifest = directory.manifest(listing)
    base = directory.open_base()
    if base is None:
        if any(listing.segments.values()) or (manifest is not None and manifest.tip is not None):
            raise LogError(f"the log {directory.path} has lost its bases: restore them, or name another [log] path")
        return ValidLog([], None, None)
    tip, sealed = base.tip, []
    for file, limit in directory.readable_segments(listing, manifest) if manifest is not None else []:
        counting = 0
        for header, end in scan_segment(directory.path / file, limit, verify_after=base.tip.number):
            if header.number > base.tip.number and header.tip != tip:
                if header.parent != tip.checksum or header.number < tip.number:
                    break
                tip = header.tip
            counting = end
        if counting:
            sealed.append(SealedSegment(file, counting))
        _log_ignored_bytes(directory.path / file, limit, counting)
    return ValidLog(sealed, base.tip, tip)


def _log_ignored_bytes(path: Path, limit: int | None, counting: int) -> None:
    try:
        lost = (path.stat().st_size if limit is None else limit) - counting
    except FileNotFoundError:
        return
    if lost:
        # after a kill or a power loss the end of the last file may be half a record; anything else is damage
        logger.warning("bytes of the log do not count", extra={"file": path.name, "bytes": lost, "kept": counting})


def sync_file(path: Path) -> None:
    """The file's bytes are on the disk when this returns; one that was retired meanwhile is none of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_old_epochs(directory: LogDirectory, number: int) -> None:
    """Statuses and manifests that nobody reads any more."""
    for epoch in range(number - 2 * EPOCHS_RETAINED, number - EPOCHS_RETAINED):
        for name in (manifest_name(epoch), f"status-{epoch:010d}.json"):
            if epoch > 0:
                (directory.path / name).unlink(missing_ok=True)
