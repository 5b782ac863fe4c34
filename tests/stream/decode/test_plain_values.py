from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from springtide.stream.decode.plain_values import to_plain

MS = 1_700_000_000_123


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC), MS),
        (datetime(2023, 11, 15, 0, 13, 20, 123_999, timezone(timedelta(hours=2))), MS),
        (datetime(2023, 11, 14, 22, 13, 20, 123_456), MS),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC), -1),
        (date(1970, 1, 2), 86_400_000),
        (time(1, 2, 3, 4_500), 3_723_004),
        (timedelta(seconds=1.5), 1500),
        (Decimal("12"), 12),
        (Decimal("12.50"), 12.5),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": [Decimal("0.1"), None, True]}, {"a": [0.1, None, True]}),
    ],
)
def test_a_value_is_the_one_that_json_has(value, plain) -> None:
    found = to_plain(value)
    assert (found, type(found)) == (plain, type(plain))


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(ValueError, match="is a string, not int"):
        to_plain({"a": {5: 1}})
