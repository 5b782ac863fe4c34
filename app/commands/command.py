"""A subcommand, what it reports, and how that is printed: as JSON for programs, as lines for people.

Also times, sizes, numbers as the commands print them. Imports nothing heavy.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# how a command's argument may name a version; springtide.app.version_log.read.index reads it
VERSION_NAMES = "latest, oldest, -3, 3.1207, a number, a pin, @2026-11-21T10:00Z (wall time) or event@..."


class Report(NamedTuple):
    """The result of a command. `lines` are printed one by one, as they come."""

    document: Any
    lines: Iterable[str]
    exit_code: int = 0


class Subcommand(NamedTuple):
    """A subcommand. Heavy imports are inside `run`, which returns a report, or the exit code if it has none."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Report | int]


def add_json(parser: argparse.ArgumentParser, *, default: bool = False) -> None:
    """Add the --json option; `default` is its value for a command that prints JSON where stdout is no terminal."""
    parser.add_argument("--json", action="store_true", default=default, help="print JSON instead of lines for people")


def print_report(report: Report, *, as_json: bool) -> int:
    """Print a report, the JSON indented on a terminal and elsewhere as one line; return the exit code."""
    if as_json:
        import msgspec

        text = msgspec.json.encode(report.document)
        print((msgspec.json.format(text) if sys.stdout.isatty() else text).decode(), flush=True)
    else:
        for line in report.lines:
            print(line, flush=True)
    return report.exit_code


def format_time(ms: int) -> str:
    """Return a Unix time as local time to the second; a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) if ms else "-"


def format_bytes(num_bytes: int) -> str:
    """Return a size in its largest unit of which there is at least one: `1.5 MiB`."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"


def format_number(number: float | None, digits: int = 4) -> str:
    """Return the number with `digits` significant digits; a dash for None."""
    return "-" if number is None else f"{number:.{digits}g}"


def format_signed(number: int) -> str:
    """Return a difference with its sign and thousands separators."""
    return f"{number:+,}"
