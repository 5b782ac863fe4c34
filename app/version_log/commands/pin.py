"""Pin and unpin versions. Needs no trainer: a pin is a file, and retention spares what the pins need.

Retention deletes with `retention.lock` held, and a pin is checked and written with it held: no version can go between
the check and the pin.
"""

import time
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.kept_versions import FOLDER, Pin, is_pin_name, pin_path, read_pin, retention_lock
from springtide.app.version_log.read.exact_state import ExactStates
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.write.epoch import sync_state
from springtide_client.errors import LogError
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import version_name
from springtide_client.log.directory import LogDirectory
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import draft_of, fsync_folder, sync_file, write_synced

WAIT_SECONDS = 30.0
RETRY_SECONDS = 0.1


def pin_version(log_path: Path, version: str, name: str, *, wait_seconds: float = WAIT_SECONDS) -> Pin:
    """Pin the version that `version` names; returns once the pin and the version would survive a power loss.

    Waits for the exact state of a large net, while a trainer starts, and while retention deletes. The same pin again is
    no error. UserError if the version cannot be rebuilt, or the name is taken or malformed; LogError if the wait was
    too long.
    """
    if not is_pin_name(name):
        raise UserError(f"pin {name!r}: a name begins with a letter; letters, digits, dots, - and _ follow, 64 at most")
    deadline = time.monotonic() + wait_seconds
    directory = LogDirectory(log_path)
    while True:
        with retention_lock(log_path, wait_seconds=max(0.0, deadline - time.monotonic())) as is_held:
            if not is_held:
                raise LogError(f"the compactor of {log_path} has been deleting files for {wait_seconds:g} s: try again")
            index = LogIndex(directory)
            number = index.resolve(version)
            index.base_before(number)  # UserError if the version cannot be rebuilt
            if (taken := read_pin(log_path, name)) is not None:
                if taken.head == index.head(number):
                    return taken
                raise UserError(f"{name} pins version {version_name(taken.version)}: unpin it, or choose another name")
            if make_durable(index, number):
                pin = Pin(name=name, version=number, checksum=index.head(number).checksum, created_ms=wall_ms())
                write_pin(log_path, pin)
                return pin
        if time.monotonic() > deadline:
            raise LogError(
                f"version {version_name(number)} is not durable yet, after {wait_seconds:g} s: a trainer is starting, "
                "or has not written the state of its net; pin an older version, or try again"
            )
        time.sleep(RETRY_SECONDS)


def unpin_version(log_path: Path, name: str) -> Pin:
    """Remove a pin durably; retention may then delete what it kept. UserError if there is no such pin."""
    pin = read_pin(log_path, name)
    path = pin_path(log_path, name)
    try:
        path.unlink()
    except FileNotFoundError:
        pin = None
    if pin is None:
        raise UserError(f"no version is pinned as {name!r}: `springtide versions list` shows the pins")
    fsync_folder(path.parent)
    return pin


def make_durable(index: LogIndex, version: int) -> bool:
    """Return True once a version survives a power loss; False if a start may still go back behind it.

    What a base holds or a manifest seals is durable. Other records are fsynced here, up to the first at or after the
    version whose exact state of the net is there, for a start goes back to such a one. They count only if no higher
    epoch is claimed afterwards: its trainer may have measured the files before.
    """
    sealed = index.manifest.head.number if index.manifest.head is not None else 0
    if version <= max([sealed, *index.bases]):
        return True
    base = index.base_before(version)
    entries = index.entries_between(base.head.number, index.numbers[-1])
    states = ExactStates(index.directory.path, base, index.find)
    num_exact = states.newest(entries)
    if not num_exact or entries[num_exact - 1].number < version:
        return False
    for path in {path for entry in entries[:num_exact] for path in entry.files()}:
        sync_file(path)
    exact_state = entries[num_exact - 1].read_summary().meta.exact_state
    if exact_state > base.head.number and (file := states.file(exact_state)) is not None:
        sync_state(file)
    fsync_folder(index.directory.path)
    return not index.directory.is_fenced(index.manifest.epoch)


def write_pin(log_path: Path, pin: Pin) -> None:
    """1. Write a draft. 2. fsync it. 3. Rename it. 4. fsync the folder. Call it with the retention lock held."""
    folder = Path(log_path) / FOLDER
    folder.mkdir(exist_ok=True)
    fsync_folder(log_path)
    with draft_of(pin_path(log_path, pin.name)) as draft:
        write_synced(draft, encode_checksummed_json(pin))
        failpoint("before a pin is renamed")
    failpoint("after a pin is renamed")
    fsync_folder(folder)
