"""The names that people give versions: numbers, places counted from the end, instants, pins."""

from datetime import UTC, datetime
from typing import Literal, NamedTuple

from springtide.app.errors import UserError
from springtide_client.format.records import EPOCH_SHIFT

MAX_LENGTH = 4_000  # of a name, below the number of digits that Python converts
CLOCKS: dict[str, Literal["created_ms", "event_clock_ms"]] = {"": "created_ms", "event": "event_clock_ms"}


class Instant(NamedTuple):
    """A time on one of a version's clocks: when it was written, or how far event time had come."""

    clock: Literal["created_ms", "event_clock_ms"]
    ms: int


def parse_instant(name: str) -> Instant | None:
    """Return the instant in `@TIME` or `event@TIME`; None for a name without @. UserError if it is malformed.

    TIME is ISO 8601, in UTC unless it has an offset.
    """
    clock, at, text = name.partition("@")
    if not at:
        return None
    try:
        time = datetime.fromisoformat(text)
        if clock not in CLOCKS:
            raise ValueError(clock)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return Instant(CLOCKS[clock], round(time.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UserError(f"version {name!r}: write @2026-11-21T10:00Z or event@2026-11-21T10:00Z") from None


def parse_version(name: str) -> int:
    """Return the number that a name means; at most 0: counted back from the latest. UserError if it is malformed."""
    if len(name) > MAX_LENGTH:
        raise UserError(f"version {name[:20]!r}...: a version's name has at most {MAX_LENGTH:,} characters")
    epoch, dot, count = name.partition(".")
    if name in ("latest", "oldest"):
        return 0
    if epoch.isascii() and epoch.isdecimal() and (count.isascii() and count.isdecimal() if dot else True):
        number = (int(epoch) << EPOCH_SHIFT) + int(count) if dot else int(epoch)
        if number > 0:
            return number
    if name.startswith("-") and name[1:].isascii() and name[1:].isdecimal():
        return int(name)
    raise UserError(
        f"version {name!r}: no pin has this name; write latest, oldest, -3 (three before "
        "the latest), 3.1207, its number, @2026-11-21T10:00Z or event@2026-11-21T10:00Z"
    )
