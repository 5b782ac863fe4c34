"""Values of binary formats as the ones that JSON has, so that a value means the same in every format.

timestamps, dates, times, durations   milliseconds: since 1970, since 1970, of the day, long
decimals                              an integer where they have no digits after the point, else a number
UUIDs                                 their text
names of maps and records             strings; another key makes the message a dead letter
bytes                                 stay bytes, which no field takes
"""

import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
PLAIN = (str, int, float, bool, type(None), bytes)


def to_plain(value: Any) -> Any:
    """Return a value that a library has decoded with plain values in it. ValueError for a key that is no string."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"a name of a field is a string, not {type(name).__name__}")
        return {name: to_plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(inner) for inner in value]
    if isinstance(value, datetime.datetime):
        return ((value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)) - EPOCH) // MILLISECOND
    if isinstance(value, datetime.date):
        return (value.toordinal() - EPOCH.toordinal()) * 86_400_000
    if isinstance(value, datetime.time):
        seconds = 3600 * value.hour + 60 * value.minute + value.second
        return 1000 * seconds + value.microsecond // 1000
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, Decimal):
        return from_decimal(value)
    if isinstance(value, UUID):
        return str(value)
    return value


def from_decimal(value: Decimal) -> int | float:
    """Return an integer where the decimal has no digits after the point, and else the nearest float."""
    exponent = value.as_tuple().exponent
    return int(value) if isinstance(exponent, int) and 0 <= exponent < 400 else float(value)
