"""Preconditions of a request: the served version is at most so many ms stale, and not before version V."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from springtide.app.serving.http.errors import VERSION_NOT_REACHED as VERSION_NOT_REACHED
from springtide.app.serving.http.errors import ApiError, bad_request, version_not_reached

MAX_STALENESS = "x-springtide-max-staleness-ms"
MIN_VERSION = "x-springtide-min-version"
TOO_STALE = "too_stale"
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

    def violation(self, version: int, staleness_ms: Callable[[], int | None]) -> ApiError | None:
        """The error 503 of a served version that does not meet the conditions, else None.

        `staleness_ms()` is None if the staleness of the version is not known.
        """
        if self.min_version is not None and version < self.min_version:
            return version_not_reached(self.min_version, version)
        if self.max_staleness_ms is not None:
            found_ms = staleness_ms()
            if found_ms is None or found_ms > self.max_staleness_ms:
                age = "of unknown age" if found_ms is None else f"{found_ms} ms old"
                return ApiError(
                    503,
                    TOO_STALE,
                    f"the newest model is {age}, at most {self.max_staleness_ms:g} ms are allowed",
                    "retry, allow more, or look at the trainer's state in /v1/status",
                    headers={"Retry-After": "1"},
                )
        return None


NO_PRECONDITIONS = Preconditions()
MaxStalenessMs = Annotated[
    float | None,
    Meta(description="Respond with 503 if the served version is staler than this.", extra_json_schema={"minimum": 0}),
]


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
        return NO_PRECONDITIONS
    # the parser keeps whitespace after a value, which is not part of it (RFC 9110, 5.5)
    staleness, version = staleness and staleness.rstrip(" \t"), version and version.rstrip(" \t")
    if staleness is not None and not MILLISECONDS.fullmatch(staleness):
        raise bad_request(
            f"{MAX_STALENESS}: {staleness[:40]!r} is not a valid duration", "send milliseconds, for example 500"
        )
    if version is not None and not NUMBER.fullmatch(version):
        raise bad_request(f"{MIN_VERSION}: {version[:40]!r} is not a valid version", "send the number of a version")
    return Preconditions(None if staleness is None else float(staleness), None if version is None else int(version))
