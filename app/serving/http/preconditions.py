"""Preconditions of a request: the served version is at most so many ms stale, and not before version V."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.serving.http.errors import bad_request

MAX_STALENESS = "x-springtide-max-staleness-ms"
MIN_VERSION = "x-springtide-min-version"
# float() and int() would accept more: inf, 1_000, digits of other scripts
MILLISECONDS = re.compile(r"[0-9]{1,300}(?:\.[0-9]{0,300})?(?:[eE][+-]?[0-9]{1,3})?")
NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True)
class Preconditions:
    """None: no condition."""

    max_staleness_ms: float | None = None
    min_version: int | None = None

    def with_max_staleness(self, max_staleness_ms: float | None) -> "Preconditions":
        """These conditions, with the stricter of their own staleness limit and that of the body."""
        if max_staleness_ms is None:
            return self
        if self.max_staleness_ms is not None:
            max_staleness_ms = min(self.max_staleness_ms, max_staleness_ms)
        return Preconditions(max_staleness_ms, self.min_version)


def check_max_staleness(max_staleness_ms: float | None) -> float | None:
    """Return the limit of a body; ApiError 400 if it is negative or NaN, which no version could ever satisfy."""
    if max_staleness_ms is not None and not max_staleness_ms >= 0:
        raise bad_request(
            f"max_staleness_ms: {max_staleness_ms} is not a valid duration", "send milliseconds, 0 or more"
        )
    return max_staleness_ms


def parse_preconditions(headers: Mapping[str, str]) -> Preconditions:
    """Parse the headers, whose names are in lower case; ApiError 400 if a value is not a number."""
    staleness, version = headers.get(MAX_STALENESS), headers.get(MIN_VERSION)
    if staleness is None and version is None:
        return Preconditions()
    # the parser keeps whitespace after a value, which is not part of it (RFC 9110, 5.5)
    staleness, version = staleness and staleness.rstrip(" \t"), version and version.rstrip(" \t")
    if staleness is not None and not MILLISECONDS.fullmatch(staleness):
        raise bad_request(
            f"{MAX_STALENESS}: {staleness[:40]!r} is not a valid duration", "send milliseconds, for example 500"
        )
    if version is not None and not NUMBER.fullmatch(version):
        raise bad_request(f"{MIN_VERSION}: {version[:40]!r} is not a valid version", "send the number of a version")
    return Preconditions(None if staleness is None else float(staleness), None if version is None else int(version))
