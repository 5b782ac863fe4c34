"""Start a trainer's epoch: claim the next number, find out what can be read of the log, and seal it.

Claims fence: once a higher epoch is claimed, readers ignore what an older trainer still writes.
"""

import errno
import logging
import os
import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError, OtherSchemaError
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.write.trainer_lock import WAIT_SECONDS, TrainerLock
from springtide.app.version_log.write.valid_log import measure_valid_log, sync_past
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import Record
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import LogManifest, base_name, claim_name, manifest_name
from springtide_client.schema import Schema
from springtide_client.system.files import fsync_folder, make_durable_folder, write_atomically

NO_FOLDER = errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG
EPOCHS_RETAINED = 5  # status files and manifests of older epochs are deleted

logger = logging.getLogger(__name__)


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
