"""Sizes in bytes, as settings write them: 4096, "64MiB", "2GB"."""

import re

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(size: int | str) -> int:
    """Return the number of bytes; ValueError with the text where it is not a valid size."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if match is None or match[2].upper() not in UNITS:
            raise ValueError(f'{size!r} is not a valid size: write 4096, "64MiB" or "2GiB"')
        size = int(float(match[1]) * UNITS[match[2].upper()])
    if size < 0:
        raise ValueError(f"{size} is not a valid size: it is negative")
    return size


def format_size(num_bytes: int) -> str:
    """Return the size in its largest binary unit that divides it: 65536 is "64KiB", 1000 is "1000"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % UNITS[unit.upper()] == 0:
            return f"{num_bytes // UNITS[unit.upper()]}{unit}"
    return str(num_bytes)
