"""Start a trainer's epoch: claim the next number, find out what can be read of the log, and seal it.

Claims fence: once a higher epoch is claimed, readers ignore what an older trainer still writes.
"""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
from springtide_client.errors import LogError
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import HEADER, Tip
from springtide_client.log.base import MANIFEST
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import (
    LogManifest,
    SealedSegment,
    base_name,
    begins_epoch,
    claim_name,
    manifest_name,
)
from springtide_client.schema import Schema
from springtide_client.system.files import fsync_folder, make_durable_folder, write_atomically

from app.version_log.errors import FencedError, OtherSchemaError
from app.version_log.failpoints import failpoint
from app.version_log.read.exact_state import ExactStates
from app.version_log.read.index import IndexEntry, LogIndex
from app.version_log.read.segments import scan_segment
from app.version_log.retention.pins import read_pins
from app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock

EPOCHS_RETAINED = 5  # status files and manifests of older epochs are deleted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """A started epoch: its manifest is published and its lock held."""

    number: int
    manifest: LogManifest
    lock: TrainerLock
    exact_state: int  # of the version that it continues from, as in that version's meta


@dataclass(frozen=True)
class ValidLog:
    """The part of a log that can be read: how long each segment is, the newest base, and the last version."""

    sealed: list[SealedSegment]
    base: Tip | None
    tip: Tip | None
    begins: list[int]  # the bases that equal no record
    exact_state: int = 0  # of the last version, as in its meta
    state_file: Path | None = None  # the file that holds it, if the log's records do not


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
        if valid.state_file is not None:
            sync_state(valid.state_file)
        manifest = LogManifest(
            epoch=number,
            sealed=valid.sealed,
            base=valid.base,
            tip=valid.tip,
            schema=msgspec.to_builtins(schema),
            fingerprint=schema.fingerprint(),
            begins=valid.begins,
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
    remove_unlisted_bases(directory, manifest)
    for draft in log_path.glob(".tmp-state-*"):  # of trainers before this one
        shutil.rmtree(draft, ignore_errors=True)
    return Epoch(number, manifest, lock, valid.exact_state)


def check_schema(directory: LogDirectory, schema: Schema) -> None:
    """Raise OtherSchemaError if a schema is not numbered as this log's next: its rows would be other features'."""
    newest = directory.newest_schema()
    if newest is not None and schema.continuing(newest) != schema:
        raise OtherSchemaError(
            f"the [schema] of the log {directory.path} has changed since this configuration was read: start again"
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

    The log ends at the newest version whose exact state is there: what comes after it is learned again. LogError if the
    log has records but no base.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    base = directory.open_base()
    if base is None:
        if any(listing.segments.values()) or (manifest is not None and manifest.tip is not None):
            raise LogError(f"the log {directory.path} has lost its bases: restore them, or set another [log] path")
        return ValidLog([], None, None, [])
    begins = [number for number in listing.valid_bases(manifest) if begins_epoch(number)]
    if begins and begins[-1] > base.tip.number:
        raise LogError(
            f"{directory.path / base_name(begins[-1])} cannot be opened, with which the log's newest schema begins: "
            "restore it from a copy, or remove it and restart to go back to the version before"
        )
    tip, sealed = base.tip, []
    entries: list[IndexEntry] = []  # the versions after the base
    for file, limit in directory.readable_segments(listing, manifest) if manifest is not None else []:
        valid_bytes = 0
        for header, end in scan_segment(directory.path / file, limit, verify_after=base.tip.number):
            if header.number > base.tip.number and header.tip != tip:
                if header.parent != tip.checksum or header.number < tip.number:
                    break
                tip = header.tip
                offset = end - header.length - HEADER.size
                entries.append(IndexEntry(header, directory.path / file, offset))
            valid_bytes = end
        if valid_bytes:
            sealed.append(SealedSegment(file, valid_bytes))
        _log_ignored_bytes(directory.path / file, limit, valid_bytes)
    _refuse_gap(directory, base.tip, tip, listing.bases)
    older = () if manifest is None else filter(lambda number: number < base.tip.number, manifest.begins)
    by_number = {entry.number: entry for entry in entries}
    states = ExactStates(directory.path, base, by_number.get)
    num_exact = states.newest(entries)
    if num_exact < len(entries):
        first = entries[num_exact]
        sealed = end_before(first, sealed)
        tip = entries[num_exact - 1].tip if num_exact else base.tip
        logger.warning(
            "continuing from the newest version with an exact state of the net: what came after it is learned again",
            extra={"version": str(tip), "dropped": len(entries) - num_exact},
        )
    exact_state = entries[num_exact - 1].read_head().meta.exact_state if num_exact else base.manifest.meta.exact_state
    state_file = states.file(exact_state) if exact_state > base.tip.number else None
    return ValidLog(sealed, base.tip, tip, sorted({*begins, *older}), exact_state, state_file)


def end_before(entry: IndexEntry, sealed: list[SealedSegment]) -> list[SealedSegment]:
    """Return the segments up to a version, without it."""
    kept: list[SealedSegment] = []
    for segment in sealed:
        if segment.file == entry.path.name:
            return [*kept, SealedSegment(segment.file, entry.offset)] if entry.offset else kept
        kept.append(segment)
    return kept


def sync_state(file: Path) -> None:
    """fsync an exact state and its name, which its writer may not have done before it died."""
    for path in (file, file.with_name(MANIFEST)):
        sync_file(path)
    fsync_folder(file.parent)
    fsync_folder(file.parent.parent)


def _refuse_gap(directory: LogDirectory, base: Tip, tip: Tip, bases: list[int]) -> None:
    """Raise LogError if retention deleted what leads from the opened base to a newer one, which does not open.

    Sealing the log there would drop everything since without a word.
    """
    newer = [number for number in bases if number > tip.number]
    if newer and not LogIndex(directory).runs.are_connected(base.number, newer[-1]) and read_pins(directory.path):
        raise LogError(
            f"the log {directory.path} has lost its newest bases, and the versions from {tip} on that led to them were "
            f"deleted: restore {base_name(newer[-1])}, or remove it to continue from version {tip}"
        )


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


def remove_unlisted_bases(directory: LogDirectory, manifest: LogManifest) -> None:
    """Delete bases with which a replaced trainer meant to begin: no reader counts them."""
    listing = directory.scan()
    for number in set(listing.bases) - set(listing.valid_bases(manifest)):
        path = directory.path / base_name(number)
        draft = path.with_name(f".tmp-deleted-{path.name}")
        path.rename(draft)
        shutil.rmtree(draft, ignore_errors=True)


def remove_old_epochs(directory: LogDirectory, number: int) -> None:
    """Delete the status files and manifests of epochs that nothing reads any more."""
    for epoch in range(number - 2 * EPOCHS_RETAINED, number - EPOCHS_RETAINED):
        for name in (manifest_name(epoch), f"status-{epoch:010d}.json"):
            if epoch > 0:
                (directory.path / name).unlink(missing_ok=True)
