"""Finds the live embedded broker of a log by <log>/broker.json and the lock that its owner holds."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from springtide.stream.errors import BrokerUnavailableError

INFO_NAME, LOCK_NAME = "broker.json", "broker.lock"


@dataclass(frozen=True)
class BrokerInfo:
    """The contents of <log>/broker.json."""

    address: str  # host:port
    pid: int

    def memory_bytes(self) -> int | None:
        """The broker's resident memory, or None where the system does not report it."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return None
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def read_info(log_path: Path) -> BrokerInfo | None:
    """The broker that broker.json names, alive or not; None where there is no readable file."""
    try:
        document = json.loads((log_path / INFO_NAME).read_text())
        return BrokerInfo(str(document["address"]), int(document["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_broker(log_path: Path) -> BrokerInfo | None:
    """The live embedded broker of a log, or None; the file that a killed one left does not count."""
    info = read_info(log_path)
    if info is None:
        return None
    try:
        with (log_path / LOCK_NAME).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return info
    except OSError:
        return None
    return None


def require_broker(log_path: Path) -> BrokerInfo:
    """The live embedded broker of a log. Raises BrokerUnavailableError, which says how to start it."""
    info = find_broker(log_path)
    if info is None:
        raise BrokerUnavailableError(
            "the embedded broker is not running: start it with `springtide run` or `springtide broker`, "
            "or set [source] bootstrap_servers"
        )
    return info
