"""Commands to the trainer: files in <log>/commands/, claimed by renaming, deleted once their version is durable.

Their status says what became of each: waiting, claimed, published or durable; and which files still hold erased ids.
"""

import logging
import math
import os
import re
import secrets
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.inspection.id_files import oldest_file_containing
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.index_entry import IndexEntry, size_of
from springtide.app.version_log.trainer_meta import keys_of_id
from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import CommandEntry, NamedKey, StreamPosition, version_name
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import base_name
from springtide_client.log.shard_files import ShardFiles
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import make_durable_folder, write_atomically
from springtide_client.system.json_text import decode_json

_NAME = re.compile(r"(?P<id>[^.][^/]*?)\.(?P<holder>json|\d+)")

logger = logging.getLogger(__name__)
CLOCK_SKEW_MS = 3_600_000  # between the hosts that submit commands and those that execute them
MAX_KEYS = 16  # reported per command: each reads the keys of the whole log


@dataclass(frozen=True)
class Command:
    """A request to the trainer. `body` is the file's JSON; `kind` is empty if the file cannot be read."""

    id: str
    kind: str
    body: dict[str, Any]


def submit_command(log_path: Path, kind: str, body: Mapping[str, Any]) -> str:
    """Write a command file for the trainer to execute; returns its id once the file would survive a power loss."""
    # ids sort by time, so that the trainer executes commands in the order they were submitted
    now_ms = wall_ms()
    command_id = f"{now_ms:013d}-{secrets.token_hex(6)}"
    command = {"id": command_id, "kind": kind, "created_ms": now_ms, **body}
    folder = log_path / "commands"
    make_durable_folder(folder)
    write_atomically(folder / f"{command_id}.json", msgspec.json.encode(command))
    return command_id


class CommandQueue:
    """The commands one epoch executes, each exactly once: the version that carries a command records its id."""

    def __init__(self, log_path: Path, epoch: int, executed: Mapping[str, int]) -> None:
        """`executed`: what the log says is done (`Resume.executed_commands`), command id -> version."""
        self._folder = Path(log_path) / "commands"
        self._epoch = epoch
        self._executed = dict(executed)
        self._claimed: set[str] = set()

    def has_pending(self) -> bool:
        """Return True if there is a command to claim."""
        return any(self._is_pending(match) for match in map(_NAME.fullmatch, self._names()))

    def claim(self) -> list[Command]:
        """Claim every command that is not executed yet, in the order of their ids; each is returned once.

        Commands claimed by a dead trainer are claimed again, unless the log says they were executed.
        """
        commands = []
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match is None or not self._is_pending(match):
                continue
            path = self._folder / f"{match['id']}.{self._epoch}"
            try:
                os.rename(self._folder / name, path)
                failpoint("after a command is claimed")
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:  # a folder, or a file without read permission: refused like malformed JSON
                _log_unreadable(match["id"], error)
                text = b""
            commands.append(_parse(match["id"], text))
            self._claimed.add(match["id"])
        return commands

    def mark_executed(self, command_id: str, version: int) -> None:
        """Note that this version carries the command."""
        self._executed[command_id] = version

    def acknowledge(self, durable: int) -> None:
        """Delete the files of commands whose versions are durable; a power loss could undo earlier ones."""
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match is not None and self._executed.get(match["id"], durable + 1) <= durable:
                failpoint("before a command is deleted")
                try:
                    (self._folder / name).unlink(missing_ok=True)
                except OSError:  # not a file; the log remembers that the command is done
                    continue
                self._claimed.discard(match["id"])

    def _is_pending(self, match: re.Match[str] | None) -> bool:
        if match is None or match["id"] in self._claimed or match["id"] in self._executed:
            return False
        return match["holder"] == "json" or int(match["holder"]) <= self._epoch  # else: this trainer has been replaced

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []


def command_entry(
    command: Command, result: Mapping[str, Any], *, samples_trained: int, positions: Mapping[str, StreamPosition]
) -> CommandEntry:
    """Return what the version that carries the command records of it.

    Of a `forget` it keeps the keys and the stream positions, so that they stay erased whatever version is restored.
    """
    entry = CommandEntry(id=command.id, kind=command.kind, samples_trained=samples_trained, result=dict(result))
    if command.kind == "forget" and not entry.is_refused:
        entry.keys = msgspec.convert(command.body["keys"], list[NamedKey])
        entry.positions = dict(positions)
    return entry


def _parse(command_id: str, text: bytes) -> Command:
    try:
        body = decode_json(text, dict[str, Any])
    except msgspec.MsgspecError as error:
        _log_unreadable(command_id, error)
        body = {}
    return Command(command_id, str(body.get("kind", "")), body)


def _log_unreadable(command_id: str, error: Exception) -> None:
    logger.warning("a command cannot be read", extra={"command": command_id, "reason": str(error)})


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
            found = [oldest_file_containing(log, *one) for one in keys_of_id(schema, key.feature, key.id)]
        except (EncodeError, KeyError):
            continue
        held = [one for one in found if one is not None]
        # the file that goes last; an unknown time may be after all others
        reference = max(held, key=lambda one: math.inf if one.expected_ms is None else one.expected_ms, default=None)
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
            meta = record.read_summary().meta
        except LogError:  # its segment was deleted meanwhile
            break
        for entry in meta.executed_commands:
            if entry.id == command_id:
                return record.number, entry
        if meta.created_ms < submitted_ms - CLOCK_SKEW_MS:
            return None
    for version in reversed(index.bases):
        try:
            entries = read_base_manifest(directory.path / base_name(version)).meta.executed_commands
        except (FileNotFoundError, LogError):  # deleted meanwhile, or damaged: the other bases have the entry too
            continue
        for entry in entries:
            if entry.id == command_id:
                return 0, entry
    return None
