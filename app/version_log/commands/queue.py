"""Commands to the trainer: files in <log>/commands/, claimed by renaming, unlinked once their version is durable."""

import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from springtide_client.format.records import StreamPosition
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import fsync_folder, write_atomically

from app.version_log.failpoints import failpoint

_NAME = re.compile(r"(?P<id>[^.][^/]*?)\.(?P<holder>json|\d+)")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """What somebody wants of the trainer. `body` is the file's JSON; `kind` is empty where it cannot be read."""

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
    folder.mkdir(parents=True, exist_ok=True)
    fsync_folder(log_path)
    write_atomically(folder / f"{command_id}.json", msgspec.json.encode(command))
    return command_id


class CommandQueue:
    """The orders that one epoch executes, each exactly once: its id goes into the version that carries it."""

    def __init__(self, log_path: Path, epoch: int, executed: Mapping[str, int]) -> None:
        """`executed`: what the log says is done (`Resume.orders`), id -> version."""
        self._folder = Path(log_path) / "commands"
        self._epoch = epoch
        self._executed = dict(executed)
        self._claimed: set[str] = set()

    def has_pending(self) -> bool:
        """Whether there is an order that nobody has executed yet."""
        return any(self._is_new(match) for match in map(_NAME.fullmatch, self._names()))

    def claim(self) -> list[Command]:
        """The orders that nobody has executed yet, in the order of their ids. Each is handed out once.

        A dead trainer's claims are taken over with the rest: what it had executed stands in the log.
        """
        orders = []
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match is None or not self._is_new(match):
                continue
            path = self._folder / f"{match['id']}.{self._epoch}"
            try:
                os.rename(self._folder / name, path)
                failpoint("after a command is claimed")
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:  # a folder, or a file of somebody else's: told like any text that is no order
                logger.warning("an order cannot be read", extra={"order": match["id"], "reason": str(error)})
                text = b""
            orders.append(_read(match["id"], text))
            self._claimed.add(match["id"])
        return orders

    def mark_executed(self, order_id: str, version: int) -> None:
        """The order was executed, and this version says so."""
        self._executed[order_id] = version

    def acknowledge(self, durable: int) -> None:
        """Unlink the orders whose versions are durable: until then a power loss may bring them back."""
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match is not None and self._executed.get(match["id"], durable + 1) <= durable:
                failpoint("before a command is deleted")
                try:
                    (self._folder / name).unlink(missing_ok=True)
                except OSError:  # no file; the log remembers that it is done with
                    continue
                self._claimed.discard(match["id"])

    def _is_new(self, match: re.Match[str] | None) -> bool:
        if match is None or match["id"] in self._claimed or match["id"] in self._executed:
            return False
        return match["holder"] == "json" or int(match["holder"]) <= self._epoch  # else: this trainer has been replaced

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []


def command_entry(
    order: Command, result: Mapping[str, Any], *, samples_trained: int, positions: Mapping[str, StreamPosition]
) -> dict[str, Any]:
    """What a version says of an order that it carries.

    The keys of a forgetting last, and where in the stream it was: a later reader must know that they were forgotten,
    whatever is gone back to.
    """
    entry = {"id": order.id, "kind": order.kind, "samples_trained": samples_trained, "result": dict(result)}
    if order.kind == "forget" and "refused" not in result:
        entry |= {"keys": order.body["keys"], "positions": dict(positions)}
    return entry


def _read(order_id: str, text: bytes) -> Command:
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        logger.warning("an order cannot be read", extra={"order": order_id, "reason": str(error)})
        body = {}
    return Command(order_id, str(body.get("kind", "")), body)
