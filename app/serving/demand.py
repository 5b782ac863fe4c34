"""What an asker demands of the version: not older than so many ms, not before version V."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.serving.problems import bad_request

MAX_STALENESS = "x-springtide-max-staleness-ms"
MIN_VERSION = "x-springtide-min-version"


@dataclass(frozen=True)
class Demand:
    """None demands nothing."""

    max_staleness_ms: float | None = None
    min_version: int | None = None

    def tightened(self, max_staleness_ms: float | None) -> "Demand":
        """The stricter of this and the staleness that a body asks for."""
        if max_staleness_ms is None:
            return self
        if self.max_staleness_ms is not None:
            max_staleness_ms = min(self.max_staleness_ms, max_staleness_ms)
        return Demand(max_staleness_ms, self.min_version)


def read_demand(headers: Mapping[str, str]) -> Demand:
    """From lower-case header names; ApiError 400 where a value is no number."""
    staleness, version = headers.get(MAX_STALENESS), headers.get(MIN_VERSION)
    if staleness is None and version is None:
        return Demand()
    try:
        max_staleness_ms = None if staleness is None else float(staleness)
        min_version = None if version is None else int(version)
    except ValueError:
        raise bad_request(f"{MAX_STALENESS} and {MIN_VERSION} are numbers") from None
    if max_staleness_ms is not None and not max_staleness_ms >= 0:
        raise bad_request(f"{MAX_STALENESS}: {staleness} is no duration")
    return Demand(max_staleness_ms, min_version)
