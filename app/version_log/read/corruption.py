"""Corruption between the newest base and the end of the log: finding it, reporting it to the trainer, what it lost.

Followers cannot pass such a place, and no base can be made of what comes after it. A process that meets one leaves a
report in the log's folder; the trainer then starts a new epoch before the corrupt place and learns on from there.
"""

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from springtide.app.version_log.read.index_entry import IndexEntry, size_of
from springtide_client.errors import LogError
from springtide_client.format.records import CommandEntry, Tip
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from springtide_client.log.shard_files import ShardFiles
from springtide_client.system.files import write_atomically

REPORT_NAME = "corruption.json"


class CorruptionReport(msgspec.Struct):
    """Why the log that an epoch is writing cannot be read."""

    epoch: int
    reason: str


def report_corruption(directory: LogDirectory, reason: str) -> None:
    """Leave a report for the trainer of the present epoch."""
    report = CorruptionReport(directory.scan().claimed_epoch, reason)
    with suppress(OSError):  # on a full disk it will be found again later
        write_atomically(directory.path / REPORT_NAME, msgspec.json.encode(report), durable=False)


def take_corruption_report(log_path: Path, epoch: int) -> str:
    """Delete the report and return its reason; empty if there is none about this epoch."""
    path = log_path / REPORT_NAME
    try:
        text = path.read_bytes()
        path.unlink()
        report = msgspec.json.decode(text, type=CorruptionReport)
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError) as error:
        return f"{REPORT_NAME} cannot be read: {error}"
    return report.reason if report.epoch == epoch else ""


def find_corruption(directory: LogDirectory, newest: Tip) -> str:
    """Read the log from its newest base up to a version; return why that fails, or an empty string."""
    try:
        base = directory.open_base()
        tip = None if base is None else base.tip
        for record in directory.records(tip):
            tip = record.tip
    except LogError as error:
        return str(error)
    return "" if tip is not None and tip.number >= newest.number else f"it ends at {tip}, before {newest}"


def lost_commands(directory: LogDirectory, known: Container[str]) -> Iterator[CommandEntry]:
    """Yield the commands of versions that are no longer part of the log and that must be executed again.

    These are commands that no other version carries (`known`: ids that one does) and whose files are deleted, because
    their versions had been durable. Every readable record beyond the seals is searched, whatever comes before it.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    if manifest is None:
        return
    valid_bytes, shards = dict(directory.readable_segments(listing, manifest)), ShardFiles(directory.path)
    for epoch, names in listing.segments.items():
        for name in names if epoch < manifest.epoch else ():
            path, limit = directory.path / name, valid_bytes.get(name) or 0
            for frame in sound_frames(path) if size_of(path) > limit else ():
                if frame.end <= limit:
                    continue
                try:
                    entries = IndexEntry(frame, shards).read_alone().meta.executed_commands
                except LogError:
                    continue
                for entry in entries:
                    if entry.id not in known and not list((directory.path / "commands").glob(f"{entry.id}.*")):
                        yield entry
