"""Versions that retention keeps: the pinned ones, and the bases that the rule `keep` names; the lock around both."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import msgspec

from springtide.app.version_log.config import KeepRule
from springtide_client.format.checksums import decode_checksummed_json
from springtide_client.format.records import Head
from springtide_client.log.base import BaseManifest
from springtide_client.system.files import file_lock

LOCK_NAME = "retention.lock"
RETRY_SECONDS = 0.02
FOLDER = "pins"
SUFFIX = ".json"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
RESERVED = ("latest", "oldest", "event")
END_OF_LOG = 2**63 - 1
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@contextmanager
def retention_lock(log_path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the lock and yield True; False if another process held it all the time. The kernel frees it at a kill."""
    deadline = time.monotonic() + wait_seconds

    def wait() -> bool:
        time.sleep(RETRY_SECONDS)
        return time.monotonic() > deadline

    with file_lock(Path(log_path) / LOCK_NAME, wait) as is_held:
        yield is_held


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A pinned version. Its file `pins/NAME.json` appears complete, never changes, and is deleted as a whole."""

    name: str
    version: int
    checksum: int  # of the version
    created_ms: int  # when it was pinned

    @property
    def head(self) -> Head:
        return Head(self.version, self.checksum)


def is_pin_name(name: str) -> bool:
    """Return True if a pin may have this name, which no other way of naming a version uses."""
    return NAME.fullmatch(name) is not None and name not in RESERVED


def pin_path(log_path: Path, name: str) -> Path:
    """Return the file of a pin."""
    return Path(log_path) / FOLDER / f"{name}{SUFFIX}"


def read_pins(log_path: Path) -> list[Pin]:
    """Return the pins of a log, those of the oldest versions first; LogError if one of them cannot be read."""
    pins = []
    for name in pin_names(log_path):
        path = pin_path(log_path, name)
        try:
            pins.append(decode_checksummed_json(path.read_bytes(), Pin, str(path)))
        except FileNotFoundError:  # unpinned meanwhile
            continue
    return sorted(pins, key=lambda pin: (pin.version, pin.name))


def pin_names(log_path: Path) -> list[str]:
    """Return the names of the pins, sorted."""
    try:
        names = os.listdir(Path(log_path) / FOLDER)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def read_pin(log_path: Path, name: str) -> Pin | None:
    """Return the pin of this name; None if there is none. LogError if it cannot be read."""
    path = pin_path(log_path, name)
    try:
        return decode_checksummed_json(path.read_bytes(), Pin, str(path)) if is_pin_name(name) else None
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class KeptVersions:
    """The bases to keep, and after and up to which versions the records between them are needed."""

    bases: frozenset[int]
    ranges: tuple[tuple[int, int], ...]
    oldest_recent: int  # of the newest `keep_bases` bases

    def needs_any(self, first: int, last: int) -> bool:
        """Return True if records numbered from `first` to `last` are needed."""
        return any(after < last and first <= end for after, end in self.ranges)


def kept_versions(
    bases: Sequence[BaseManifest],
    *,
    keep_bases: int,
    by_rule: frozenset[int],
    pins: Sequence[Pin],
    base_of: Callable[[int], int | None],
) -> KeptVersions:
    """Return what to keep; `bases`: all complete ones, oldest first. `base_of`: from which a version is rebuilt."""
    recent = groups_of_equal_bases(bases)[-keep_bases:]
    kept = by_rule | {version for group in recent for version in (group[0], group[-1])}
    ranges = [(group[-1], following[0]) for group, following in pairwise(recent)]
    ranges.append((recent[-1][-1], END_OF_LOG))
    for pin in pins:
        if (base := base_of(pin.version)) is not None:
            kept |= {base}
            ranges += [(base, pin.version)] if base < pin.version else []
    return KeptVersions(kept, tuple(ranges), recent[0][0])


def groups_of_equal_bases(bases: Sequence[BaseManifest]) -> list[list[int]]:
    """Return the bases in groups; those of one group hold the same, for only heartbeats were written between them."""
    groups: list[list[int]] = []
    before: BaseManifest | None = None
    for base in bases:
        if before is None or not base.repeats or base.repeats not in (before.number, before.repeats):
            groups.append([])
        groups[-1].append(base.number)
        before = base
    return groups


def kept_by_rule(bases: Sequence[BaseManifest], rule: KeepRule) -> list[int]:
    """Return the bases that the rule keeps, oldest first: the last of each hour and day (UTC) that count."""
    kept: set[int] = set()
    for count, period_ms in ((rule.hourly, HOUR_MS), (rule.daily, DAY_MS)):
        last = {version_time_ms(base) // period_ms: base.number for base in bases}
        kept |= {last[period] for period in sorted(last)[len(last) - count :]} if count else set()
    return sorted(kept)


def version_time_ms(base: BaseManifest) -> int:
    """Return when a base's version was written; the first base of a log holds none, and counts from its own time."""
    return base.meta.created_ms or base.created_ms


def described(base: BaseManifest) -> str:
    """Return the hour of a base's version, as log lines show it."""
    return datetime.fromtimestamp(version_time_ms(base) / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
