"""What an asker demands of the version: not older than so many ms, not before version V."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.serving.http.errors import bad_request

MAX_STALENESS = "x-springtide-max-staleness-ms"
MIN_VERSION = "x-springtide-min-version"
# float() and int() would read more: inf, 1_000, digits of other scripts
MILLISECONDS = re.compile(r"[0-9]{1,300}(?:\.[0-9]{0,300})?(?:[eE][+-]?[0-9]{1,3})?")
NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True)
class Preconditions:
    """None demands nothing."""

    max_staleness_ms: float | None = None
    min_version: int | None = None

    def with_max_staleness(self, max_staleness_ms: float | None) -> "Preconditions":
        """The stricter of this and the staleness that a body asks for."""
        if max_staleness_ms is None:
            return self
        if self.max_staleness_ms is not None:
            max_staleness_ms = min(self.max_staleness_ms, max_staleness_ms)
        return Preconditions(max_staleness_ms, self.min_version)


def check_max_staleness(max_staleness_ms: float | None) -> float | None:
    """What a body demands; ApiError 400 where it is no duration, which no model would ever satisfy."""
    if max_staleness_ms is not None and not max_staleness_ms >= 0:
        raise bad_request(f"max_staleness_ms: {max_staleness_ms} is no duration", "send milliseconds, 0 or more")
    return max_staleness_ms


def parse_preconditions(headers: Mapping[str, str]) -> Preconditions:
    """From lower-case header names; ApiError 400 where a value is no number."""
    staleness, version = headers.get(MAX_STALENESS), headers.get(MIN_VERSION)
    if staleness is None and version is None:
        return Preconditions()
    # the parser leaves the blanks behind a value, which are none of it (RFC 9110, 5.5)
    staleness, version = staleness and staleness.rstrip(" \t"), version and version.rstrip(" \t")
    if staleness is not None and not MILLISECONDS.fullmatch(staleness):
        raise bad_request(f"{MAX_STALENESS}: {staleness[:40]!r} is no duration", "send milliseconds, for example 500")
    if version is not None and not NUMBER.fullmatch(version):
        raise bad_request(f"{MIN_VERSION}: {version[:40]!r} is no version", "send the number of a version")
    return Preconditions(None if staleness is None else float(staleness), None if version is None else int(version))
