"""Start a trainer's epoch: claim the next number, fsync and measure what can be read of the log, and seal it.

Claims fence: once a higher epoch is claimed, readers ignore what an older trainer still writes.
"""

import errno
import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError, OtherSchemaError
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.kept_versions import read_pins
from springtide.app.version_log.read.exact_state import ExactStates, state_numbers
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.index_entry import IndexEntry, size_of
from springtide.app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock
from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import Head, Record
from springtide_client.log.base import MANIFEST, STATE
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import Frame, frames_of
from springtide_client.log.listing import (
    LogManifest,
    SealedSegment,
    base_name,
    begins_epoch,
    claim_name,
    manifest_name,
    state_name,
)
from springtide_client.log.shard_files import ShardFiles
from springtide_client.schema import Schema
from springtide_client.system.files import fsync_folder, make_durable_folder, sync_file, write_atomically

KEPT_BYTES = 256 << 20  # of the records after the base that are kept for who replays them; he reads the others again

logger = logging.getLogger(__name__)
NO_FOLDER = errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG
EPOCHS_RETAINED = 5  # status files and manifests of older epochs are deleted


@dataclass(frozen=True)
class ValidLog:
    """The part of a log that can be read: how long each segment is, the newest base, and the last version."""

    sealed: list[SealedSegment]
    base: Head | None
    head: Head | None
    begins: list[int]  # the bases that equal no record
    exact_state: int = 0  # of the last version, as in its meta
    records: deque[Record] = field(default_factory=deque)  # the first after the base, verified


def sync_past(directory: LogDirectory) -> dict[str, int]:
    """fsync what the predecessors have left, of all ranks; return how long each file was before.

    Only that much of it may be measured, and only now: what was not fsynced, a power loss on another machine could take
    away after it was measured, and one that was replaced may still be writing. What older epochs left is sealed.
    """
    listing = directory.scan()
    sizes = {name: size_of(directory.path / name) for _, name in listing.record_files}
    for epoch, name in listing.record_files:
        if epoch >= listing.manifest_epoch:
            sync_file(directory.path / name)
    fsync_folder(directory.path)
    for number in state_numbers(directory.path):
        sync_state(directory.path / state_name(number) / STATE)
    return sizes


def measure_valid_log(directory: LogDirectory, sizes: Mapping[str, int]) -> ValidLog:
    """Follow the records of the newest manifest's files, parent by parent, from the newest base that opens.

    Of each file only `sizes` bytes count. The log ends before the first version with a shard record that is missing or
    not the one that the version names; and at the newest version whose exact state is there: what comes after it is
    learned again. LogError if the log has records but no base.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    base = directory.open_base()
    if base is None:
        if any(listing.segments.values()) or (manifest is not None and manifest.head is not None):
            raise LogError(f"the log {directory.path} has lost its bases: restore them, or set another [log] path")
        return ValidLog([], None, None, [])
    begins = [number for number in listing.valid_bases(manifest) if begins_epoch(number)]
    if begins and begins[-1] > base.head.number:
        raise LogError(
            f"{directory.path / base_name(begins[-1])} cannot be opened, with which the log's newest schema begins: "
            "restore it from a copy, or remove it and restart to go back to the version before"
        )
    head, sealed, shards = base.head, [], ShardFiles(directory.path, sizes)
    entries: list[IndexEntry] = []  # the versions after the base
    exact_states: list[int] = []  # of each, as in its meta
    kept: deque[Record] = deque()
    num_bytes = 0
    for file, limit in directory.readable_segments(listing, manifest) if manifest is not None else []:
        valid_bytes, size = 0, sizes.get(file, 0)
        limit = size if limit is None else min(limit, size)
        for frame, record in _read_after(base.head, directory.path / file, limit):
            header = frame.header
            if record is not None and header.head != head:
                if header.parent != head.checksum or header.number < head.number:
                    break
                if (record := _with_shards(record, shards)) is None:
                    break
                head = header.head
                entries.append(IndexEntry(frame, shards))
                exact_states.append(record.meta.exact_state)
                num_bytes += record.num_bytes
                if num_bytes <= KEPT_BYTES:
                    kept.append(record)
            valid_bytes = frame.end
        if valid_bytes:
            sealed.append(SealedSegment(file, valid_bytes))
        _log_ignored_bytes(directory.path / file, limit, valid_bytes)
    _refuse_gap(directory, base.head, head, listing.bases)
    older = () if manifest is None else filter(lambda number: number < base.head.number, manifest.begins)
    by_number = {entry.number: entry for entry in entries}
    states = ExactStates(directory.path, base, by_number.get)
    num_exact = states.newest(exact_states)
    if num_exact < len(entries):
        first = entries[num_exact]
        sealed = end_before(first, sealed)
        head = entries[num_exact - 1].head if num_exact else base.head
        logger.warning(
            "continuing from the newest version with an exact state of the net: what came after it is learned again",
            extra={"version": str(head), "dropped": len(entries) - num_exact},
        )
    exact_state = exact_states[num_exact - 1] if num_exact else base.manifest.meta.exact_state
    kept = deque(record for record in kept if record.number <= head.number)
    return ValidLog(sealed, base.head, head, sorted({*begins, *older}), exact_state, kept)


def _read_after(base: Head, path: Path, limit: int) -> Iterator[tuple[Frame, Record | None]]:
    """Yield each record of a segment up to a damaged one; those after the base are read and verified."""
    with suppress(FileNotFoundError, CorruptRecordError), path.open("rb") as file:
        for frame in frames_of(file.fileno(), path, limit):
            yield frame, frame.read(file.fileno()) if frame.header.number > base.number else None


def _with_shards(record: Record, shards: ShardFiles) -> Record | None:
    """Return a version with its shard records; None where one of them is missing or damaged."""
    try:
        return shards.complete(record)
    except CorruptRecordError as error:
        logger.warning("a shard record is damaged", extra={"version": str(record.head), "reason": str(error)})
        return None


def end_before(entry: IndexEntry, sealed: list[SealedSegment]) -> list[SealedSegment]:
    """Return the segments up to a version, without it."""
    kept: list[SealedSegment] = []
    for segment in sealed:
        if segment.file == entry.frame.path.name:
            return [*kept, SealedSegment(segment.file, entry.frame.offset)] if entry.frame.offset else kept
        kept.append(segment)
    return kept


def sync_state(file: Path) -> None:
    """fsync an exact state and its name, which its writer may not have done before it died."""
    for path in (file, file.with_name(MANIFEST)):
        sync_file(path)
    with suppress(FileNotFoundError):  # its trainer has deleted it
        fsync_folder(file.parent)
    fsync_folder(file.parent.parent)


def _refuse_gap(directory: LogDirectory, base: Head, head: Head, bases: list[int]) -> None:
    """Raise LogError if retention deleted what leads from the opened base to a newer one, which does not open.

    Sealing the log there would drop everything since without a word.
    """
    newer = [number for number in bases if number > head.number]
    if newer and not LogIndex(directory).runs.are_connected(base.number, newer[-1]) and read_pins(directory.path):
        raise LogError(
            f"the log {directory.path} has lost its newest bases, and the versions from {head} on that led to them "
            f"were deleted: restore {base_name(newer[-1])}, or remove it to continue from version {head}"
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


@dataclass(frozen=True)
class Epoch:
    """A started epoch: its manifest is published and its lock held."""

    number: int
    manifest: LogManifest
    lock: TrainerLock
    exact_state: int  # of the version that it continues from, as in that version's meta
    # the first of the versions after the newest base, as they were read to be sealed
    records: deque[Record] = field(default_factory=deque)


def make_log_folder(log_path: Path) -> None:
    """Create the folder of the log. UserError where its path is one that no folder can have."""
    try:
        make_durable_folder(log_path)
    except OSError as error:
        if error.errno not in NO_FOLDER:  # such as a disk that fails
            raise
        reason = os.strerror(error.errno or 0)
        raise UserError(f"[log] path = {str(log_path)!r} cannot be made a folder ({reason}): set another one") from None


def start_epoch(
    log_path: Path, schema: Schema, *, take_over: bool = False, wait_seconds: float = WAIT_SECONDS
) -> Epoch:
    """1. Lock. 2. Claim. 3. fsync what is there. 4. Measure what of it can be read. 5. Publish the manifest, a seal.

    The claim comes before the measuring, because readers check for claims before they use what they have read: what the
    predecessor appends after the measuring is never used. LogBusyError if another trainer runs.
    """
    make_log_folder(log_path)
    directory = LogDirectory(log_path)
    check_schema(directory, schema)
    lock = TrainerLock.acquire(log_path, take_over=take_over, wait_seconds=wait_seconds)
    try:
        number = claim_epoch(directory)
        failpoint("after a claim")
        valid = measure_valid_log(directory, sync_past(directory))
        manifest = LogManifest(
            epoch=number,
            sealed=valid.sealed,
            base=valid.base,
            head=valid.head,
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
    return Epoch(number, manifest, lock, valid.exact_state, valid.records)


def check_schema(directory: LogDirectory, schema: Schema) -> None:
    """Raise OtherSchemaError if a schema is not numbered as this log's next: its rows would be other features'."""
    newest = directory.newest_schema()
    if newest is not None and schema.continuing(newest) != schema:
        raise OtherSchemaError(
            f"the [schema] of the log {directory.path} has changed since this configuration was read: start again"
        )


def claim_epoch(directory: LogDirectory) -> int:
    """Claim the next epoch by exclusive creation of its file. Claims are never deleted.

    They have no gaps, for who looks for a higher claim asks for the next one only: a claim that a power loss took from
    another host, which may come back and write on, is made again.
    """
    while not create_claim(directory.path, number := directory.scan().claimed_epoch + 1):
        pass
    fsync_folder(directory.path)
    if [create_claim(directory.path, lower) for lower in missing_claims(directory.path, number)]:
        fsync_folder(directory.path)
    return number


def create_claim(log_path: Path, number: int) -> bool:
    """Create the file of a claim; False if it is there."""
    try:
        os.close(os.open(log_path / claim_name(number), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    return True


def missing_claims(log_path: Path, number: int) -> list[int]:
    """Return the epochs below this one whose claims are not in the folder."""
    names = set(os.listdir(log_path))
    return [epoch for epoch in range(1, number) if claim_name(epoch) not in names]


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
