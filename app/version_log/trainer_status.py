"""The trainer's status file: replaced every second, read by servers, and by the next trainer before it starts."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import NO_SPACE_ERRNOS, write_atomically

_NAME = re.compile(r"status-(\d{10})\.json")


def write_status(log_path: Path, epoch: int, status: Mapping[str, Any]) -> None:
    """Replace the epoch's status; the writer's epoch, pid, machine and the time are added where they are missing."""
    signed = {
        "epoch": epoch,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "machine": boot_id(),
        "updated_ms": wall_ms(),
        **status,
    }
    path, text = Path(log_path) / f"status-{epoch:010d}.json", msgspec.json.encode(signed)
    try:
        # losing a status in a power loss loses nothing: it is not worth an fsync a second
        write_atomically(path, text, durable=False)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRNOS:
            raise
        _overwrite(path, text)


def _overwrite(path: Path, text: bytes) -> None:
    """On a full disk the blocks of the present status are all there is: its writer lives, and says so in them."""
    with path.open("r+b") as file:
        file.write(text.ljust(os.fstat(file.fileno()).st_size))


def read_status(log_path: Path) -> dict[str, Any] | None:
    """The status of the highest epoch that has one, as it was written; None where there is none that can be read."""
    try:
        names = [name for name in os.listdir(log_path) if _NAME.fullmatch(name)]
        status = msgspec.json.decode((Path(log_path) / max(names)).read_bytes()) if names else None
    except (OSError, msgspec.DecodeError):
        return None
    return status if isinstance(status, dict) else None


def boot_id() -> str:
    """Equal in processes of one running kernel: between them, and only there, a file lock tells who lives."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
