"""What a look through a log covered, and what it found: told line by line, and kept."""

from collections.abc import Callable
from dataclasses import dataclass

OK, NOTE, ERROR = "ok", "note", "wrong"


def plural(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True)
class Finding:
    """Something that was covered, is worth knowing, or is wrong."""

    level: str
    what: str
    file: str | None = None  # in the log's folder
    offset: int | None = None  # in the file
    consequence: str | None = None  # what whoever reads the log does about it

    def __str__(self) -> str:
        place = "" if self.file is None else self.file
        if self.offset is not None:
            place += f" at {self.offset:,}"
        return f"{place}{': ' if place else ''}{self.what}{'; ' if self.consequence else ''}{self.consequence or ''}"


class VerifyReport:
    """Every finding, in the order in which they were told."""

    def __init__(self, tell: Callable[[Finding], object] = lambda _: None) -> None:
        """`tell` is called with each at once."""
        self.all: list[Finding] = []
        self._tell = tell

    @property
    def errors(self) -> list[Finding]:
        """What is wrong."""
        return [finding for finding in self.all if finding.level == ERROR]

    def ok(self, what: str) -> None:
        """This was looked at, and is as it should be."""
        self._add(Finding(OK, what))

    def note(self, what: str, file: str | None = None, offset: int | None = None) -> None:
        """This is no damage, and should be known."""
        self._add(Finding(NOTE, what, file, offset))

    def error(self, file: str, offset: int | None, what: str, reader: str) -> None:
        """This is damage."""
        self._add(Finding(ERROR, what, file, offset, reader))

    def _add(self, finding: Finding) -> None:
        self.all.append(finding)
        self._tell(finding)
