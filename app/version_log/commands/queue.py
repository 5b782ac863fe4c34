"""Commands to the trainer: files in <log>/commands/, claimed by renaming, deleted once their version is durable."""

import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from springtide.app.version_log.failpoints import failpoint
from springtide_client.format.records import CommandEntry, NamedKey, StreamPosition
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import make_durable_folder, write_atomically

_NAME = re.compile(r"(?P<id>[^.][^/]*?)\.(?P<holder>json|\d+)")

logger = logging.getLogger(__name__)


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
        body = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        _log_unreadable(command_id, error)
        body = {}
    return Command(command_id, str(body.get("kind", "")), body)


def _log_unreadable(command_id: str, error: Exception) -> None:
    logger.warning("a command cannot be read", extra={"command": command_id, "reason": str(error)})
