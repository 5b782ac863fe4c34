"""Profile of the values of one column, and rows unlike the others.

Odd rows, such as a price of "expensive" among numbers, must not decide what a column is.
"""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from springtide.app.tools.init import name_hints as hints
from springtide_client.encode import parse_number
from springtide_client.errors import EncodeError
from springtide_client.targets import EARLIEST_MS

Scalar = bool | int | float | str
RARE = 200  # a value unlike the others in fewer than 1 of so many rows is a mistake in these rows


class ColumnProfile:
    """Kinds, counts and range of a column's values; `values` has one per row, None where it is missing or null."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name, self.values = name, values
        self.kinds = Counter(kind_of(value) for value in values if value is not None)
        self.num_null = sum(value is None for value in values)
        scalars = [value for value in values if isinstance(value, (bool, int, float, str))]
        self.counts = Counter(map(scalar_key, scalars))
        self.lists = [value for value in values if isinstance(value, list)]
        numbers = [value for value in scalars if isinstance(value, (int, float)) and math.isfinite(value)]
        self.least: float | None = min(numbers, default=None)
        self.most: float | None = max(numbers, default=None)

    @property
    def num_rows(self) -> int:
        return len(self.values)

    @property
    def num_values(self) -> int:
        """Rows with a value."""
        return self.num_rows - self.num_null

    @property
    def num_distinct(self) -> int:
        """Different values that are no lists; `7` and `"7"` are one."""
        return len(self.counts)

    def has_only(self, *kinds: str) -> bool:
        """Return True if every value is of one of these kinds, and there is one."""
        return bool(self.kinds) and self.kinds.keys() <= set(kinds)

    @property
    def is_integral(self) -> bool:
        """True if all values are whole numbers written as such."""
        return self.has_only("integer")

    @property
    def has_fractions(self) -> bool:
        """True if a value is a number, but not a whole one."""
        return any(isinstance(value, float) and not value.is_integer() for value in self.values)

    @property
    def mean_length(self) -> float:
        """Characters of a string, on average."""
        lengths = [len(value) for value in self.values if isinstance(value, str)]
        return sum(lengths) / len(lengths) if lengths else 0.0

    def elements(self) -> Iterable[Any]:
        """Every element of every list."""
        return (element for each in self.lists for element in each if element is not None)

    @cached_property
    def labels(self) -> list[float | None] | None:
        """Each row's value as a label from 0 to 1, None where it is missing or wrong; None if many are wrong."""
        found, num_wrong = list[float | None](), 0
        for value in self.values:
            found.append(_label(value))
            num_wrong += value is not None and found[-1] is None
            if num_wrong and num_wrong * RARE >= self.num_values:
                return None
        return found

    def wrong_labels(self) -> set[int]:
        """Return the rows whose value is given, but cannot be a label."""
        return {row for row, value in enumerate(self.values) if value is not None and _label(value) is None}


def _label(value: Any) -> float | None:
    """Return a value as a label from 0 to 1; None if it is none."""
    try:
        label = None if value is None else parse_number(value)
    except EncodeError:
        return None
    return label if label is not None and 0 <= label <= 1 else None


def kind_of(value: Any) -> str:
    """Return "boolean", "integer", "number", "text", "list" or "object"."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list"}
    return kinds.get(type(value), "object")


def scalar_key(value: Scalar) -> str:
    """Return a value as a name; `7`, `7.0` and `"7"` have the same."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(int(value)) if isinstance(value, bool) else str(value)


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
