"""How the commands write times, numbers and JSON for people."""

import time
from typing import Any


def print_json(document: Any) -> None:
    """Indented, and ready for other programs."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document)).decode())


def format_time(ms: int) -> str:
    """Local time to the second; a dash where there is none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) if ms else "-"


def format_bytes(num_bytes: int) -> str:
    """Bytes in the largest unit that leaves at least one."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"


def format_number(number: float | None, digits: int = 4) -> str:
    """A number with some digits; a dash where there is none."""
    return "-" if number is None else f"{number:.{digits}g}"


def format_signed(number: int) -> str:
    """A difference."""
    return f"{number:+,}"
