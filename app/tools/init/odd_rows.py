"""Rows unlike the others, such as a price of "expensive" among numbers: they must not decide what a column is."""

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from springtide.app.tools.init import name_hints as hints
from springtide.app.tools.init.column_profile import RARE, ColumnProfile, kind_of
from springtide_client.targets import EARLIEST_MS

FUTURE_MS = 60_000  # a clock may be ahead by so much


def odd_rows(columns: Mapping[str, ColumnProfile], labels: Collection[str]) -> dict[str, set[int]]:
    """Return, by field, the numbers of the rows with a value that fewer than 1 in 200 rows are like.

    A value is like those of the same kind; a label like those from 0 to 1, a time like those in the same unit. Empty
    if half of the rows were odd: then none is like the others.
    """
    found = {name: column.wrong_labels() if name in labels else _odd_values(column) for name, column in columns.items()}
    num_rows = max((column.num_rows for column in columns.values()), default=0)
    if 2 * len(set().union(*found.values())) >= num_rows:
        return {}
    return {name: rows for name, rows in found.items() if rows}


def _odd_values(column: ColumnProfile) -> set[int]:
    is_id = hints.has_word(column.name, hints.ID_WORDS)
    kinds: list[str | None] = []
    for value in column.values:
        kind = None if value is None else kind_of(value)
        kinds.append("integer" if kind == "number" and not is_id else kind)  # an id is never a fraction
    found = _of_rare_kind(kinds)
    units = list(map(_unit, column.values))
    unit, num = Counter(units).most_common(1)[0] if units else ("", 0)
    if unit and (len(units) - num) * RARE < len(units):
        others = {row for row, each in enumerate(units) if each != unit}
        times = [value for row, value in enumerate(column.values) if row not in others]
        if hints.has_word(column.name, hints.TIMES) or (unit == "milliseconds" and times == sorted(times)):
            found |= others  # those without a time too: a timestamp must have no gaps
    return found


def _of_rare_kind(kinds: list[str | None]) -> set[int]:
    counts = Counter(kind for kind in kinds if kind is not None)
    rare = {kind for kind, num in counts.items() if num * RARE < counts.total()}
    return {row for row, kind in enumerate(kinds) if kind in rare} if rare else set()


def _unit(value: Any) -> str:
    """Return the unit in which a number can be a time between 1980 and now; "" for all else."""
    if type(value) is not int:
        return ""
    latest_ms = 1000 * time.time() + FUTURE_MS
    if EARLIEST_MS <= value <= latest_ms:
        return "milliseconds"
    return "seconds" if EARLIEST_MS <= 1000 * value <= latest_ms else ""
