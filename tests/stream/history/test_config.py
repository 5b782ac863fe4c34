"""The keys of `[history]`: what excludes what, and how a time may be written."""

from typing import Any

import pytest

from springtide.stream.history.config import HistoryConfig


@pytest.mark.parametrize(
    ("until", "time_ms"),
    [
        (1_700_000_000_000, 1_700_000_000_000),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        (None, None),
    ],
)
def test_the_seam_is_a_time(until: int | str | None, time_ms: int | None) -> None:
    assert HistoryConfig(path="clicks", until=until).until_ms == time_ms


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"path": "a", "until": 1_700_000_000}, "not a time in milliseconds"),
        ({"path": "a", "until": "yesterday"}, "until yesterday: write milliseconds"),
        ({"path": "a", "until": "2024-01-01", "offsets": {"clicks/0": 3}}, "exclude each other"),
        ({"path": "a", "offsets": {"clicks/0": -1}}, "at least 0"),
        ({"until": "2024-01-01"}, "needs path"),
        ({"path": "s3://key:secret@bucket/a"}, "keys do not belong"),
        ({"path": "a", "order": "size"}, "order"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        HistoryConfig(**settings)
    assert "secret" not in str(caught.value)
