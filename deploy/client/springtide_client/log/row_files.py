"""The files of a base with its rows: of each table one, or one for each of several ranges of mixed keys.

The ranges are equal parts of all mixed keys, as `rows/hash_range.py` cuts them.
"""

from springtide_client.rows.hash_range import HashRange

ROWS, OPTIMIZER = "rows.safetensors", "optimizer.safetensors"


def rows_files(table: str, num_ranges: int = 1) -> list[str]:
    """Return the names of the files with the rows of a table, in the order of their ranges."""
    return _names(f"rows.{table}" if table else "rows", num_ranges)


def optimizer_files(table: str, num_ranges: int = 1) -> list[str]:
    """Return those of the files with their states; absent where a table other than the main one has none."""
    return _names(f"optimizer.{table}" if table else "optimizer", num_ranges)


def _names(stem: str, num_ranges: int) -> list[str]:
    if num_ranges == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05d}-of-{num_ranges:05d}.safetensors" for number in range(1, num_ranges + 1)]


def overlapping(num_ranges: int, hash_range: HashRange) -> range:
    """Return which of the ranges, counted from 0, have keys of another range."""
    if hash_range.is_empty:
        return range(0)
    last = max(hash_range.start, hash_range.end - 1)
    first_owner, last_owner = (((mixed >> 32) * num_ranges) >> 32 for mixed in (hash_range.start, last))
    return range(first_owner, last_owner + 1)
