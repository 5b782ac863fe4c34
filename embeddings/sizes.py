"""Sizes in bytes: integers, or texts such as "2GiB"."""

import re

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def num_bytes(size: int | str) -> int:
    """The bytes of a size; ValueError where it is none."""
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a size must not be negative: {size}")
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(f"{size!r} is no size: write an integer or a text like '2GiB'")
    return int(float(match[1]) * UNITS[match[2].upper()])
