"""The `[history]` section: which files are learned before the topic, and where the topic goes on."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from springtide_client.system.settings import Settings

MIN_MS, MAX_MS = 315_532_800_000, 7_258_118_400_000  # a number outside is in seconds, or a date without dashes


class HistoryConfig(Settings, frozen=True, kw_only=True):
    """Files that are learned first, in time order, and the place in the topic from which learning goes on."""

    path: Annotated[
        str | None,
        Meta(
            description="Files to learn before the topic: a file, a folder, or a pattern with `*` and `**`, local or "
            '`"s3://bucket/clicks/**/*.parquet"`; Parquet, CSV, TSV or JSONL. Default: none.'
        ),
    ] = None
    order: Annotated[
        Literal["name", "time"],
        Meta(
            description="The order of the files: by their names, or by the event times that they begin with. "
            "The rows of a file are learned in the file's order."
        ),
    ] = "name"
    sort_rows: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="N: every N rows of a file are sorted by event time before they are learned. 0: they are not.",
        ),
    ] = 0
    until: Annotated[
        int | str | None,
        Meta(
            description='The seam, as milliseconds since 1970 or `"2026-05-01T12:00:00Z"`: rows with an earlier event '
            "time are learned from the files, all others from the topic. Default: the middle of what both hold."
        ),
    ] = None
    offsets: Annotated[
        Mapping[str, int],
        Meta(
            description="Instead of `until`: all rows are learned, then the topic from these offsets on, such as "
            '`{ "clicks/0" = 1200 }`; a partition that is not named, from its beginning.'
        ),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until is not None and self.offsets:
            raise ValueError("until and offsets exclude each other: keep one")
        if self.path is None and (self.until is not None or self.offsets):
            raise ValueError('needs path = "...": the files that are learned first')
        if self.path is not None and re.match(r"[a-z0-9+]+://[^/]*@", self.path):
            raise ValueError("path: keys do not belong there: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        if any(offset < 0 for offset in self.offsets.values()):
            raise ValueError("offsets are at least 0")
        self.until_ms  # noqa: B018  # checks it

    @property
    def until_ms(self) -> int | None:
        """The configured seam in milliseconds; None where it is found, or given by offsets."""
        return None if self.until is None else parse_time_ms(str(self.until), "until")


def parse_time_ms(text: str, name: str) -> int:
    """Parse milliseconds since 1970, or an ISO 8601 time, UTC if it has no zone. ValueError begins with `name`."""
    if text.isascii() and text.isdecimal():
        if not MIN_MS <= int(text) < MAX_MS:
            raise ValueError(f"{name} {text}: that is not a time in milliseconds since 1970 between 1980 and 2200")
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{name} {text}: write milliseconds since 1970, or a time such as 2026-05-01T12:00:00Z"
        ) from None
    return max(0, round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))
