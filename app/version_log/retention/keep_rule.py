"""Which bases a log keeps: the newest ones, one of each hour and day by rule, and what pinned versions need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from springtide.app.version_log.config import KeepRule
from springtide.app.version_log.retention.pins import Pin
from springtide_client.log.base import BaseManifest

END_OF_LOG = 2**63 - 1
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


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
    kept = by_rule | {number for group in recent for number in (group[0], group[-1])}
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


def num_bytes(base: BaseManifest) -> int:
    """Return the size of a base's files."""
    return sum(file.bytes for file in base.files.values())
