"""The report of a verification: what was checked, what is worth knowing, what is wrong and what follows from it."""

from collections.abc import Callable
from dataclasses import dataclass

OK, NOTE, ERROR = "ok", "note", "error"


def plural(number: int, noun: str) -> str:
    """Return a number and its noun, such as `3 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True)
class Finding:
    """One line of the report; `level` is OK, NOTE or ERROR."""

    level: str
    what: str
    file: str | None = None  # in the log's folder
    offset: int | None = None  # in the file, in bytes
    consequence: str | None = None  # what readers of the log do about it, and what to do

    def __str__(self) -> str:
        place = "" if self.file is None else self.file
        if self.offset is not None:
            place += f" at {self.offset:,}"
        return f"{place}{': ' if place else ''}{self.what}{'; ' if self.consequence else ''}{self.consequence or ''}"


class VerifyReport:
    """Collects findings in order."""

    def __init__(self, on_finding: Callable[[Finding], object] = lambda _: None) -> None:
        """`on_finding` is called with each finding as it is added."""
        self.all: list[Finding] = []
        self._on_finding = on_finding

    @property
    def errors(self) -> list[Finding]:
        """Everything that is wrong."""
        return [finding for finding in self.all if finding.level == ERROR]

    def ok(self, what: str) -> None:
        """Report something that was checked and is right."""
        self._add(Finding(OK, what))

    def note(self, what: str, file: str | None = None, offset: int | None = None) -> None:
        """Report something worth knowing that is not an error."""
        self._add(Finding(NOTE, what, file, offset))

    def error(self, file: str, offset: int | None, what: str, consequence: str) -> None:
        """Report something that is wrong."""
        self._add(Finding(ERROR, what, file, offset, consequence))

    def _add(self, finding: Finding) -> None:
        self.all.append(finding)
        self._on_finding(finding)
