"""Damage ahead of the newest base: who reads the log says so in a file, and the trainer begins an epoch before it.

Nobody can follow past such a place, and no base can be made of what lies behind it, until somebody learns that again.
"""

import logging
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from springtide_client.errors import LogError
from springtide_client.format.records import HEADER, Tip
from springtide_client.log.directory import LogDirectory
from springtide_client.system.files import write_atomically

from app.version_log.read.index import IndexEntry
from app.version_log.read.segments import scan_segment

REPORT_NAME = "break.json"

logger = logging.getLogger(__name__)


class CorruptionReport(msgspec.Struct):
    epoch: int
    reason: str


def report_corruption(directory: LogDirectory, reason: str) -> None:
    """For the trainer of the present epoch."""
    epoch = directory.scan().claimed_epoch
    with suppress(OSError):  # a full disk: it will be found again
        write_atomically(
            directory.path / REPORT_NAME, msgspec.json.encode(CorruptionReport(epoch, reason)), durable=False
        )


def take_corruption_report(log_path: Path, epoch: int) -> str:
    """Why the log of this epoch cannot be read, as somebody found it; empty where nobody did. Told once."""
    path = log_path / REPORT_NAME
    try:
        text = path.read_bytes()
        path.unlink()
        note = msgspec.json.decode(text, type=CorruptionReport)
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError) as error:
        return f"{REPORT_NAME} cannot be read: {error}"
    return note.reason if note.epoch == epoch else ""


def find_corruption(directory: LogDirectory, newest: Tip) -> str:
    """Why the log cannot be read from its newest base up to a version; empty where it can. Reads all of it."""
    try:
        base = directory.open_base()
        tip = None if base is None else base.tip
        for record in directory.records(tip):
            tip = record.tip
    except LogError as error:
        return str(error)
    return "" if tip is not None and tip.number >= newest.number else f"it ends at {tip}, before {newest}"


def lost_commands(directory: LogDirectory, told: Container[str]) -> Iterator[dict[str, Any]]:
    """What versions that do not count any more say of orders that no other version tells, and whose files are gone.

    Their files went because they were done for good. What is readable is read, whatever stands before it.
    """
    listing = directory.scan()
    manifest = directory.manifest(listing)
    if manifest is None:
        return
    counting = dict(directory.readable_segments(listing, manifest))
    for epoch, names in listing.segments.items():
        for name in names if epoch < manifest.epoch else ():
            path, limit = directory.path / name, counting.get(name) or 0
            for header, end in scan_segment(path, verify_after=2**63) if _size(path) > limit else ():
                if end <= limit:
                    continue
                try:
                    orders = IndexEntry(header, path, end - header.length - HEADER.size).read().meta.executed_commands
                except LogError:
                    continue
                for order in orders:
                    order_id = str(order.get("id"))
                    if order_id not in told and not list((directory.path / "commands").glob(f"{order_id}.*")):
                        yield order


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
