"""What became of an order: whether it waits, which version carries it, and for a forgetting, where the id still is."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import version_name
from springtide_client.keys import encode_id
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory, base_name
from springtide_client.schema import Schema

from app.errors import UserError
from app.version_log.commands.erasure_audit import oldest_file_containing
from app.version_log.config import LogConfig
from app.version_log.read.index import LogIndex

CLOCK_SKEW_MS = 3_600_000  # by so much the clocks of those who order and those who execute may differ
MAX_KEYS = 16  # looking for one reads all keys of the log


class CommandStatus(NamedTuple):
    """`waiting`: nobody has taken it. `taken`: by a trainer. `published`: a version carries it. `durable`: for good."""

    id: str
    state: str
    version: int | None = None  # the one that carries it; 0: an older one than the log still tells of
    entry: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        entry = self.entry or {}
        known = self.version if self.version else None
        return {
            "command": self.id,
            "state": self.state,
            "kind": entry.get("kind"),
            "version": known,
            "name": version_name(known) if known else None,
            "result": entry.get("result"),
        }


def command_status(log_path: Path, order_id: str) -> CommandStatus | None:
    """What is known of the order; None where nothing is: it was never put down, or long ago."""
    held = _file_of(log_path, order_id)
    if held == "json":
        return CommandStatus(order_id, "waiting")
    found = _in_log(LogDirectory(log_path), order_id)
    if found is None:
        return None if held is None else CommandStatus(order_id, "taken")
    # the file is unlinked when the version that carries the order is durable
    return CommandStatus(order_id, "published" if held else "durable", *found)


def erased_keys_report(log: LogConfig, schema: Schema, receipt: CommandStatus) -> list[dict[str, Any]]:
    """For the first keys that were forgotten: since when they are gone, and the oldest file that still holds them."""
    places = []
    for key in (receipt.entry or {}).get("keys", ())[:MAX_KEYS]:
        try:
            holding = oldest_file_containing(log, schema.number(key["feature"]), encode_id(key["id"])[0])
        except (EncodeError, KeyError, TypeError):
            continue
        place = {"feature": key["feature"], "id": key["id"], "gone_since": receipt.version or None}
        place |= {"oldest_file": None, "goes": None, "expected_ms": None}
        if holding is not None:
            place |= {
                "oldest_file": holding.file,
                "goes": holding.removal_condition(log),
                "expected_ms": holding.expected_ms,
            }
        places.append(place)
    return places


def _file_of(log_path: Path, order_id: str) -> str | None:
    """What stands behind its name in commands/: `json`, or the epoch that took it; None where there is no file."""
    try:
        names = os.listdir(Path(log_path) / "commands")
    except FileNotFoundError:
        return None
    holders = [name[len(order_id) + 1 :] for name in names if name.startswith(f"{order_id}.")]
    return "json" if "json" in holders else max(holders, default=None)


def _in_log(directory: LogDirectory, order_id: str) -> tuple[int, dict[str, Any]] | None:
    """The version that carries it, searched from the newest back to the time of its id."""
    try:
        index = LogIndex(directory)
    except UserError:  # there is no version yet
        return None
    born_ms = int(order_id[:13]) if order_id[:13].isdecimal() else 0
    for place in reversed(index.entries):
        try:
            meta = place.read_head().meta
        except LogError:  # retired meanwhile
            break
        for entry in meta.executed_commands:
            if entry.get("id") == order_id:
                return place.number, entry
        if meta.created_ms < born_ms - CLOCK_SKEW_MS:
            return None
    for number in reversed(index.bases):
        try:
            orders = read_base_manifest(directory.path / base_name(number)).meta.executed_commands
        except (FileNotFoundError, LogError):  # retired meanwhile, or damaged: the others tell it too
            continue
        for entry in orders:
            if entry.get("id") == order_id:
                return 0, entry
    return None
