"""Roles that are proposed for columns, leaks that are pointed out, and questions instead of guesses."""

import json
from pathlib import Path
from typing import Any

import pytest

from springtide.app.errors import UserError
from springtide.app.tools.init.proposal import Proposal, propose
from springtide.app.tools.init.sampled_rows import SampledRows, sample_file
from springtide.stream.history.input_file import InputFile

NUM = 300
TS = 1_700_000_000_000


def clicks(num: int = NUM, **columns: Any) -> list[dict[str, Any]]:
    """Rows with a label; each column is a function of the row's number, or one value for all rows."""
    rows = [{"click": int(n % 7 < 3)} for n in range(num)]
    for name, value in columns.items():
        for n, row in enumerate(rows):
            row[name] = value(n) if callable(value) else value
    return rows


def sampled(rows: list[dict[str, Any]]) -> SampledRows:
    return SampledRows("clicks", rows, [json.dumps(row).encode() for row in rows], 0, is_whole=True)


def proposed(rows: list[dict[str, Any]], *labels: str) -> Proposal:
    return propose(sampled(rows), labels)


@pytest.mark.parametrize(
    ("name", "value", "role"),
    [
        ("name", lambda n: f"n{n % 40}", "categorical"),
        ("名前", lambda n: ["ä", "日本", None][n % 3], "categorical"),
        ("flag", lambda n: n % 5 == 0, "categorical"),
        ("user_id", lambda n: n % 40, "categorical"),
        ("userId", lambda n: n % 290, "categorical"),
        ("visits", lambda n: n % 40, "categorical"),  # many repeated values
        ("level", lambda n: n % 4, "categorical"),
        ("whole", lambda n: [float(n % 9), "x"][n % 2], "categorical"),
        ("mixed", lambda n: [n % 9, "x"][n % 2], "categorical"),
        ("age", lambda n: 20 + n % 40, "dense"),
        ("quantity", lambda n: n * n % 1009 // 2, "dense"),  # most values are seen once
        ("cost", lambda n: n / 3, "dense"),
        ("share", lambda n: float(n % 4), "dense"),  # whole, but written as fractions
        ("fingerprint", lambda n: (n % 250) * 10**12, "categorical"),
        ("tags", lambda n: [f"t{n % 5}", f"t{n % 3}"][: n % 3], "multi_value"),
        ("last_items", lambda n: [n % 5, n % 3][: n % 3], "sequence"),
    ],
)
def test_a_column_gets_the_role_of_its_values(name: str, value: Any, role: str) -> None:
    rows = clicks(**{name: value})
    assert proposed(rows).roles == {name: role}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("constant", "x", "the same in every row"),
        ("nothing", None, "null in every row"),
        ("event_id", lambda n: f"e{n}", "another one in every row"),
        ("row_id", lambda n: 17 * n, "another one in every row"),
        ("text", lambda n: f"{max(n, 50)} " + "words " * 20, "free text"),
        ("nested", {"a": 1}, "an object"),
        ("vector", [0.5, 1.5], "a list of numbers"),
        ("either", lambda n: [1] if n % 2 else 1, "a list in some rows"),
        ("", lambda n: n % 5, "no name"),
        ("half", lambda n: [n / 7, "x"][n % 2], "fractions in some rows"),
        ("user_agent", lambda n: f"Mozilla {max(n, 2)}", "another one in nearly every row"),
        ("propensity", lambda n: 1 / (2 + n % 3), "how the log was made"),
        ("time_seconds", lambda n: 1_700_000_000 + n, "a time in seconds"),
        ("created_at", lambda n: f"2023-11-14T10:{n % 60:02}:00Z", "a time in text"),
        ("seen_ts", lambda n: TS + n if n % 2 else None, "a time, but null"),
    ],
)
def test_a_column_that_cannot_be_a_feature_is_left_out_with_the_reason(name: str, value: Any, reason: str) -> None:
    found = proposed(clicks(user_id=lambda n: n % 40, **{name: value}))
    assert found.roles == {"user_id": "categorical"}
    assert reason in found.left_out[name]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda n: n if n % 7 < 3 else None, "is null exactly when the label is 0"),
        (lambda n: None if n % 7 < 3 else n, "is null exactly when the label is 1"),
        (lambda n: 4 + n % 2 if n % 7 < 3 else n % 4, "determines the label alone"),
        (lambda n: f"yes {n % 2}" if n % 7 < 3 else "no", "determines the label alone"),
        (lambda n: n / 1000 - (n % 7 < 3), "orders the labels almost perfectly"),
    ],
)
def test_a_field_that_gives_the_label_away_is_a_leak(value: Any, reason: str) -> None:
    found = proposed(clicks(user_id=lambda n: n % 40, outcome_info=value))
    assert reason in found.leaks["outcome_info"]
    assert found.roles == {"user_id": "categorical"}


def test_a_strong_but_honest_field_is_no_leak() -> None:
    found = proposed(clicks(user_id=lambda n: n % 40, hint=lambda n: int(n % 7 < 3) if n % 10 else 2))
    assert (found.leaks, found.roles["hint"]) == ({}, "categorical")


@pytest.mark.parametrize(
    "odd",
    [
        {"click": 7},
        {"click": "yes"},
        {"price": "expensive"},
        {"price": True},
        {"tags": "sale"},
        {"item_id": 7.5},
        {"ts": TS // 1000},
        {"ts": 100 * TS},
        {"ts": None},
        {"ts": "today"},
    ],
)
def test_a_value_unlike_the_others_does_not_decide_what_its_field_is(odd: dict[str, Any]) -> None:
    rows = clicks(
        price=lambda n: n / 4 if n % 4 else None, tags=lambda n: [n % 3], item_id=lambda n: n % 9, ts=lambda n: TS + n
    )
    before = proposed(rows)
    assert (before.timestamp, before.notes) == ("ts", ["label: click"])
    rows[200] = {**rows[200], **odd}
    found = proposed(rows)
    assert (found.labels, found.timestamp, found.roles) == (before.labels, before.timestamp, before.roles)
    assert f"1 of {NUM} rows are unlike the others, and the fields are judged without them: {next(iter(odd))} in 1" in (
        found.notes
    )


def test_values_that_1_in_200_rows_have_are_part_of_the_field() -> None:
    rows = clicks(num=400, user_id=lambda n: n % 40, price=lambda n: "?" if n in (5, 300) else n / 4)
    found = proposed(rows)
    assert found.left_out == {"price": "fractions in some rows and other values in others"}
    rows[300]["price"] = 75.0
    assert proposed(rows).roles["price"] == "dense"


def test_a_key_by_name_is_a_feature_even_if_few_values_come_again() -> None:
    assert proposed(clicks(user_id=lambda n: f"u{max(n, 2)}")).roles == {"user_id": "categorical"}


def test_several_candidates_for_the_label_are_listed_and_none_is_guessed() -> None:
    rows = clicks(user_id=lambda n: n % 40, is_mobile=lambda n: n % 2, purchased=lambda n: int(n % 11 == 0))
    with pytest.raises(UserError, match=r"which field is the label\? click, purchased hold only 0 and 1.*--label"):
        proposed(rows)
    assert proposed(rows, "purchased").labels == ["purchased"]
    both = proposed(rows, "click", "purchased")
    assert both.labels == ["click", "purchased"]
    assert both.roles == {"user_id": "categorical", "is_mobile": "categorical"}


def test_one_candidate_with_a_labels_name_is_taken_and_the_others_are_named() -> None:
    found = proposed(clicks(user_id=lambda n: n % 40, is_mobile=lambda n: n % 2))
    assert found.labels == ["click"]
    assert found.notes == ["label: click; also 0 or 1: is_mobile (--label NAME chooses)"]


def test_candidates_without_a_labels_name_are_listed() -> None:
    rows = [{"a": n % 2, "b": n % 3 // 2, "user_id": n % 9} for n in range(NUM)]
    with pytest.raises(UserError, match=r"which field is the label\? a, b "):
        proposed(rows)


def test_a_candidate_with_other_numbers_in_a_few_rows_is_taken_by_its_name_only() -> None:
    rows = [{"visits": n % 2 if n != 9 else 2, "user_id": n % 9} for n in range(NUM)]
    with pytest.raises(UserError, match=r"label\? visits holds only 0 and 1 in all but a few rows: .*--label"):
        proposed(rows)
    assert proposed(rows, "visits").labels == ["visits"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("clik",), "did you mean click"),
        (("user_id",), "a label is a number from 0 to 1 .* not 2"),
        (("name",), "not 'n0'"),
    ],
)
def test_a_label_that_cannot_be_one_is_refused(labels: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        proposed(clicks(user_id=lambda n: n % 40, name=lambda n: f"n{n % 4}"), *labels)


def test_without_any_candidate_the_fields_are_listed() -> None:
    with pytest.raises(UserError, match=r"no field holds only 0 and 1.*the fields are user_id, age"):
        proposed([{"user_id": n, "age": n % 3} for n in range(NUM)])


def test_nothing_but_a_label_is_refused() -> None:
    with pytest.raises(UserError, match="no field that can be a feature"):
        proposed(clicks())


def test_the_ascending_time_without_gaps_is_the_timestamp() -> None:
    found = proposed(
        clicks(user_id=lambda n: n % 40, loaded_at=lambda n: TS + n % 3, ts=lambda n: TS + n, birth=lambda n: n)
    )
    assert found.timestamp == "ts"
    assert found.left_out["loaded_at"] == "another time"
    assert proposed(clicks(user_id=lambda n: n % 40)).timestamp is None
    future = proposed(clicks(user_id=lambda n: n % 40, ts=lambda n: 10 * TS + n % 20))
    assert future.timestamp is None


def test_weights_are_taken_by_an_unmistakable_name_only() -> None:
    found = proposed(clicks(user_id=lambda n: n % 40, sample_weight=lambda n: 1 + n % 3))
    assert (found.weight, found.roles) == ("sample_weight", {"user_id": "categorical"})
    maybe = proposed(clicks(user_id=lambda n: n % 40, weight=lambda n: 0.5 + n % 3))
    assert (maybe.weight, maybe.roles["weight"]) == (None, "dense")
    assert any('weight = "weight"' in note for note in maybe.notes)


def test_a_list_of_another_fields_ids_shares_its_rows() -> None:
    found = proposed(
        clicks(item_id=lambda n: n % 9, user_id=lambda n: n % 5, last_items=lambda n: [n % 8, (n + 1) % 8])
    )
    assert found.share == {"last_items": "item_id"}


def test_cells_of_delimited_files_are_numbers_by_their_looks(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(
        "click,zip,age,price,version,name\n"
        + "".join(
            f"{n % 7 // 4},0{n % 9}234,{20 + n % 30},{n / 7:.3f},{['1.5', '1.5.2'][n % 2]},\n" for n in range(100)
        )
    )
    sample = sample_file(InputFile(path), 1000)
    assert sample.rows[0] == {"click": 0, "zip": "00234", "age": 20, "price": 0.0, "version": 1.5, "name": None}
    found = propose(sample)
    assert found.roles == {"zip": "categorical", "age": "dense", "price": "dense", "version": "categorical"}
    assert found.left_out == {"name": "null in every row"}
    assert not sample_file(InputFile(path), 99).is_whole
