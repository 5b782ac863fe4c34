"""Settings are checked when they are made; every mistake is one line with the key, what is allowed, and the value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from springtide_client.system.settings import FINITE, INTERNAL, SIZE, Settings, Size, describe, keys, parse_size


class Inner(Settings, frozen=True, kw_only=True):
    rate: Annotated[float, Meta(ge=0, extra=FINITE)] = 0.1


class Example(Settings, frozen=True, kw_only=True):
    number: Annotated[int, Meta(ge=0, le=9, description="A digit.")] = 1
    part: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    any_number: float = 0.0
    word: Annotated[str, Meta(min_length=1)] = "a"
    switch: bool = False
    place: Path = Path("here")
    size_bytes: Annotated[Size, Meta(description="A size.")] = 0
    big_bytes: Annotated[int, Meta(ge=1 << 16, extra=SIZE)] = 1 << 16
    quota_bytes: Size | None = None
    names: tuple[str, ...] = ()
    choice: Literal["red", "green"] = "red"
    maybe: str | None = None
    either: Literal["auto"] | bool = "auto"
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    optimizer: Annotated[Mapping[str, Any], Meta(extra={"table": Inner})] = msgspec.field(default_factory=dict)
    inner: Inner | None = None
    by_number: Annotated[Mapping[int, Inner], Meta(extra=INTERNAL)] = {}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"number": 4.0}, Example(number=4)),
        ({"part": 0.25}, Example(part=0.25)),
        ({"any_number": 3}, Example(any_number=3.0)),
        ({"any_number": float("inf")}, Example(any_number=float("inf"))),
        ({"size_bytes": "2GiB"}, Example(size_bytes=2 << 30)),
        ({"size_bytes": 17}, Example(size_bytes=17)),
        ({"quota_bytes": "1KiB"}, Example(quota_bytes=1024)),
        ({"names": ["x", "y"]}, Example(names=("x", "y"))),
        ({"place": "var/x"}, Example(place=Path("var/x"))),
        ({"maybe": "b"}, Example(maybe="b")),
        ({"either": True}, Example(either=True)),
        ({"choice": "green"}, Example(choice="green")),
        ({"options": {"deep": {"er": 1}}}, Example(options={"deep": {"er": 1}})),
        ({"optimizer": {"rate": 1}}, Example(optimizer={"rate": 1})),
        ({"inner": {"rate": 1}}, Example(inner=Inner(rate=1.0))),
    ],
)
def test_a_value_of_the_right_type_is_taken(table: dict[str, Any], expected: Example) -> None:
    assert Example.of(table) == expected


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"nubmer": 1}, "has an unknown key 'nubmer': did you mean number?"),
        ({"by_number": {}}, "has an unknown key 'by_number': did you mean any_number?"),
        ({"number": "many"}, 'number must be a whole number from 0 to 9, not "many"'),
        ({"number": 1.5}, "number must be a whole number from 0 to 9, not 1.5"),
        ({"number": float("inf")}, "number must be a whole number from 0 to 9, not inf"),
        ({"number": True}, "number must be a whole number from 0 to 9, not true"),
        ({"number": -1}, "number must be a whole number from 0 to 9, not -1"),
        ({"number": 10**400}, f"number must be a whole number from 0 to 9, not {10**400}"),
        ({"part": 1}, "part must be a number above 0 and below 1, not 1"),
        ({"part": float("nan")}, "part must be a number above 0 and below 1, not nan"),
        ({"word": ""}, 'word must be a string that is not empty, not ""'),
        ({"word": 1}, "word must be a string that is not empty, not 1"),
        ({"switch": 1}, "switch must be true or false, not 1"),
        ({"place": 3}, "place must be a path in quotes, not 3"),
        ({"size_bytes": "2 gibs"}, 'size_bytes must be a size such as 4096 or "2GiB", not "2 gibs"'),
        ({"size_bytes": 1.5}, 'size_bytes must be a size such as 4096 or "2GiB", not 1.5'),
        ({"size_bytes": -1}, 'size_bytes must be a size such as 4096 or "2GiB", not -1'),
        ({"size_bytes": 2**63}, f'size_bytes must be a size such as 4096 or "2GiB", not {2**63}'),
        ({"big_bytes": "1KiB"}, 'big_bytes must be a size such as 4096 or "2GiB", at least 64KiB, not "1KiB"'),
        ({"names": "x"}, 'names must be a list in which each item is a string in quotes, not "x"'),
        ({"names": [1]}, "names must be a list in which each item is a string in quotes, not [1]"),
        ({"choice": "greem"}, 'choice must be one of "green", "red", not "greem": did you mean "green"?'),
        ({"either": 1}, 'either must be "auto" or true or false, not 1'),
        ({"options": 3}, "options must be a table such as { name = value }, not 3"),
        ({"optimizer": {"rate": -1}}, "optimizer rate must be a finite number of at least 0, not -1"),
        ({"optimizer": {"rote": 1}}, "optimizer has an unknown key 'rote': did you mean rate?"),
        ({"inner": {"rate": float("inf")}}, "inner rate must be a finite number of at least 0, not inf"),
    ],
)
def test_a_mistake_is_one_line(table: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Example.of(table)
    assert str(caught.value) == error


def test_construction_and_replacement_are_checked_too() -> None:
    with pytest.raises(ValueError, match="number must be"):
        Example(number=-1)
    with pytest.raises(ValueError, match="number must be"):
        msgspec.structs.replace(Example(), number=10)


def test_a_key_knows_its_description_and_what_is_allowed() -> None:
    known = keys(Example)
    assert known["number"].description == "A digit."
    assert known["size_bytes"].description == "A size."
    assert describe(known["part"].kind) == known["part"].allowed == "a number above 0 and below 1"
    assert known["by_number"].is_internal
    assert known["optimizer"].table is known["inner"].table is Inner


def test_sizes_are_read_with_and_without_units() -> None:
    assert [parse_size(size) for size in (7, "7", "1KiB", "1 kB", "1.5GiB")] == [7, 7, 1024, 1000, 3 << 29]


@pytest.mark.parametrize("text", ["", "GiB", "1 XB", "-1", "1e3", "one"])
def test_a_text_that_is_not_a_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid size: write 4096"):
        parse_size(text)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 is not a valid size"):
        parse_size(-1)
