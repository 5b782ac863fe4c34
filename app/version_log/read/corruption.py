"""Corruption between the newest base and the end of the log: finding it, reporting it to the trainer, what it lost.

Followers cannot pass such a place, and no base can be made of what comes after it. A process that meets one leaves a
report in the log's folder; the trainer then starts a new epoch before the corrupt place and learns on from there.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from springtide_client.errors import LogError
from springtide_client.format.records import Head
from springtide_client.log.directory import LogDirectory
from springtide_client.system.files import write_atomically
from springtide_client.system.json_text import decode_json

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
        report = decode_json(text, CorruptionReport)
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError) as error:
        return f"{REPORT_NAME} cannot be read: {error}"
    return report.reason if report.epoch == epoch else ""


def find_corruption(directory: LogDirectory, newest: Head) -> str:
    """Read the log from its newest base up to a version; return why that fails, or an empty string."""
    try:
        base = directory.open_base()
        head = None if base is None else base.head
        for record in directory.records(head):
            head = record.head
    except LogError as error:
        return str(error)
    return "" if head is not None and head.number >= newest.number else f"it ends at {head}, before {newest}"
