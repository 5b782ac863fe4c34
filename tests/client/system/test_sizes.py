"""Sizes are integers or numbers with a unit; anything else is refused with its text."""

import pytest

from springtide_client.system.sizes import parse_size


def test_sizes_are_read_with_and_without_units() -> None:
    assert [parse_size(size) for size in (7, "7", "1KiB", "1 kB", "1.5GiB")] == [7, 7, 1024, 1000, 3 << 29]


@pytest.mark.parametrize("text", ["", "GiB", "1 XB", "-1", "1e3", "one"])
def test_a_text_that_is_not_a_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid size: write 4096"):
        parse_size(text)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 is not a valid size"):
        parse_size(-1)
