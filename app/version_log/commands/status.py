"""The state of a command: waiting, claimed, published or durable; and which files still hold the erased ids."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.commands.erasure_audit import oldest_file_containing
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.read.index import LogIndex
from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import CommandEntry, version_name
from springtide_client.keys import encode_id
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name
from springtide_client.schema import Schema

CLOCK_SKEW_MS = 3_600_000  # between the hosts that submit commands and those that execute them
MAX_KEYS = 16  # reported per command: each reads the keys of the whole log


class CommandStatus(NamedTuple):
    """How far a command has come.

    `waiting`: submitted. `claimed`: a trainer has it. `published`: a version carries it. `durable`: that version
    survives a power loss.
    """

    id: str
    state: str
    version: int | None = None  # the version that carries it; 0: older than the log reaches back
    entry: CommandEntry | None = None

    def document(self) -> dict[str, Any]:
        """Return the status as JSON has it."""
        version = self.version or None
        return {
            "command": self.id,
            "state": self.state,
            "kind": self.entry.kind if self.entry else None,
            "version": version,
            "name": version_name(version) if version else None,
            "result": self.entry.result if self.entry else None,
        }


class ErasedKey(msgspec.Struct):
    """An erased key, and the oldest file of the log that still holds it."""

    feature: str
    id: Any
    erased_in: int | None  # the version; None if it is older than the log reaches back
    oldest_file: str | None = None  # in the log's folder; None: no file holds it any more
    removal_condition: str | None = None  # what must happen before that file is deleted
    expected_ms: int | None = None  # about when, as Unix time; None: unknown


def command_status(log_path: Path, command_id: str) -> CommandStatus | None:
    """Return the command's status; None if it was never submitted or the log no longer reaches back to it."""
    suffix = _file_suffix(log_path, command_id)
    if suffix == "json":
        return CommandStatus(command_id, "waiting")
    found = _find_entry(LogDirectory(log_path), command_id)
    if found is None:
        return None if suffix is None else CommandStatus(command_id, "claimed")
    # the file is deleted when the version that carries the command is durable
    return CommandStatus(command_id, "published" if suffix else "durable", *found)


def erased_keys_report(log: LogConfig, schema: Schema, status: CommandStatus) -> list[ErasedKey]:
    """Return, for the first MAX_KEYS keys that the command erased, which file still holds them."""
    report = []
    for key in status.entry.keys[:MAX_KEYS] if status.entry else ():
        try:
            reference = oldest_file_containing(log, schema.number(key.feature), encode_id(key.id)[0])
        except (EncodeError, KeyError):
            continue
        erased = ErasedKey(key.feature, key.id, status.version or None)
        if reference is not None:
            erased.oldest_file, erased.expected_ms = reference.file, reference.expected_ms
            erased.removal_condition = reference.removal_condition(log)
        report.append(erased)
    return report


def _file_suffix(log_path: Path, command_id: str) -> str | None:
    """Return `json`, or the epoch that claimed the command; None if it has no file in commands/."""
    try:
        names = os.listdir(Path(log_path) / "commands")
    except FileNotFoundError:
        return None
    suffixes = [name[len(command_id) + 1 :] for name in names if name.startswith(f"{command_id}.")]
    return "json" if "json" in suffixes else max(suffixes, default=None)


def _find_entry(directory: LogDirectory, command_id: str) -> tuple[int, CommandEntry] | None:
    """Find the version that carries a command, from the newest back to the time in the command's id; 0 for a base."""
    try:
        index = LogIndex(directory)
    except UserError:  # the log has no version yet
        return None
    submitted_ms = int(command_id[:13]) if command_id[:13].isdecimal() else 0
    for record in reversed(index.entries):
        try:
            meta = record.read_head().meta
        except LogError:  # its segment was deleted meanwhile
            break
        for entry in meta.executed_commands:
            if entry.id == command_id:
                return record.number, entry
        if meta.created_ms < submitted_ms - CLOCK_SKEW_MS:
            return None
    for number in reversed(index.bases):
        try:
            entries = read_base_manifest(directory.path / base_name(number)).meta.executed_commands
        except (FileNotFoundError, LogError):  # deleted meanwhile, or damaged: the other bases have the entry too
            continue
        for entry in entries:
            if entry.id == command_id:
                return 0, entry
    return None
