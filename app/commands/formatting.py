"""Times, sizes, numbers and JSON as the commands print them."""

import time
from typing import Any

# how a command's argument may name a version; springtide.app.version_log.read.version_names reads it
VERSION_NAMES = "latest, oldest, -3, 3.1207, a number, a pin, @2026-11-21T10:00Z (wall time) or event@..."


def print_json(document: Any) -> None:
    """Print the document as indented JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document)).decode())


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
