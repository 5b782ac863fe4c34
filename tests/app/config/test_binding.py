"""TOML tables become dataclasses; every mistake is one line with its mend."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from app.config.binding import bind

from app.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Example:
    number: int = 1
    share: float = 0.5
    word: str = "a"
    switch: bool = False
    place: Path = Path("here")
    size_bytes: int = 0
    names: tuple[str, ...] = ()
    choice: Literal["red", "green"] = "red"
    maybe: str | None = None
    either: str | bool = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError(f"number must not be negative, not {self.number}")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"number": 4.0}, Example(number=4)),
        ({"share": 2}, Example(share=2.0)),
        ({"share": float("inf")}, Example(share=float("inf"))),
        ({"size_bytes": "2GiB"}, Example(size_bytes=2 << 30)),
        ({"size_bytes": 17}, Example(size_bytes=17)),
        ({"names": ["x", "y"]}, Example(names=("x", "y"))),
        ({"place": "var/x"}, Example(place=Path("var/x"))),
        ({"maybe": "b"}, Example(maybe="b")),
        ({"either": True}, Example(either=True)),
        ({"choice": "green"}, Example(choice="green")),
        ({"options": {"deep": {"er": 1}}}, Example(options={"deep": {"er": 1}})),
    ],
)
def test_a_value_of_the_right_type_arrives(table: dict[str, Any], expected: Example) -> None:
    assert bind(Example, "[example]", table) == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"nubmer": 1}, ["[example]", "'nubmer'", "did you mean number?"]),
        ({"number": "many"}, ["[example] number", "a whole number", '"many"']),
        ({"number": 1.5}, ["a whole number", "1.5"]),
        ({"number": float("inf")}, ["a whole number"]),
        ({"number": True}, ["a whole number", "true"]),
        ({"switch": 1}, ["true or false"]),
        ({"word": 1}, ["a text in quotes"]),
        ({"size_bytes": "2 gibs"}, ["size_bytes", "2 gibs", "2GiB"]),
        ({"size_bytes": 1.5}, ["size"]),
        ({"size_bytes": -1}, ["negative"]),
        ({"names": "x"}, ["must be a list"]),
        ({"names": [1]}, ["a text in quotes"]),
        ({"choice": "greem"}, ["did you mean", "green"]),
        ({"options": 3}, ["must be a table"]),
        ({"number": -1}, ["[example] number must not be negative"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place_and_the_mend(table: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        bind(Example, "[example]", table)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_a_hidden_field_is_set_by_us_and_unknown_to_the_user() -> None:
    assert bind(Example, "[example]", {}, hidden={"word": "ours"}).word == "ours"
    with pytest.raises(UserError, match="unknown key 'word'"):
        bind(Example, "[example]", {"word": "theirs"}, hidden={"word": "ours"})
