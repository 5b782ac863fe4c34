"""A feature's number stays with its rows through every change of the schema, and is never given to another."""

from dataclasses import replace

import numpy as np
import pytest

from springtide_client.keys import CROSSES
from springtide_client.schema import Schema

FIRST = Schema(labels=("click",), categorical=("user", "item"), sequence=("last",), share={"last": "item"})


def test_an_equal_schema_is_numbered_as_in_a_new_log() -> None:
    assert FIRST.continuing(FIRST) == FIRST
    assert FIRST.owner_names() == {0: "user", 1: "item"}
    assert b"numbers" not in FIRST.to_json()


def test_an_added_feature_takes_a_number_that_was_never_used() -> None:
    second = replace(FIRST, categorical=("shop", "user", "item")).continuing(FIRST)
    assert second.numbers == {"shop": 3, "user": 0, "item": 1}
    assert (second.number("last"), second.unused_number) == (1, 4)
    assert Schema.from_json(second.to_json()) == second
    assert second.fingerprint() != replace(FIRST, categorical=("shop", "user", "item")).fingerprint()


def test_a_removed_feature_that_comes_back_gets_another_number() -> None:
    without = replace(FIRST, categorical=("item",)).continuing(FIRST)
    assert without.owner_names() == {1: "item"}
    assert FIRST.continuing(without).number("user") == 3
    assert replace(FIRST, categorical=("item", "shop")).continuing(without).number("shop") == 3


def test_of_features_that_part_the_owner_keeps_the_rows() -> None:
    parted = replace(FIRST, share={}).continuing(FIRST)
    assert (parted.number("item"), parted.number("last")) == (1, 3)
    alone = replace(FIRST, categorical=("user",), share={}).continuing(FIRST)
    assert alone.number("last") == 1
    turned = replace(FIRST, share={"item": "last"}).continuing(FIRST)
    assert turned.number("last") == turned.number("item") == 1


def test_a_feature_that_begins_to_share_gives_its_number_up() -> None:
    first = Schema(labels=("click",), categorical=("user", "item"), multi_value=("genres",))
    shared = replace(first, share={"genres": "item"}).continuing(first)
    assert shared.owner_names() == {0: "user", 1: "item"}
    assert first.continuing(shared).number("genres") == 3


def test_a_log_without_id_features_remembers_the_numbers_it_had() -> None:
    none = Schema(labels=("click",), dense=("age",)).continuing(FIRST)
    assert (none.dense_number("age"), none.unused_number) == (3, 4)
    assert FIRST.continuing(none).owner_names() == {4: "user", 5: "item"}


def test_dense_features_are_numbered_after_the_others_and_keep_their_numbers() -> None:
    first = replace(FIRST, dense=("price", "age"))
    assert [first.dense_number(name) for name in first.dense] == [3, 4]
    assert first.row_names() == {0: "user", 1: "item", 3: "price", 4: "age", 32767: "crosses"}
    assert first.continuing(first) == first
    second = replace(first, categorical=("user", "item", "shop"), dense=("age",)).continuing(first)
    assert (second.dense_number("age"), second.number("shop"), second.unused_number) == (4, 5, 6)
    assert Schema.from_json(second.to_json()) == second
    # an id feature of the same name has other rows
    third = replace(first, categorical=("user", "item", "price"), dense=("age",)).continuing(first)
    assert (third.number("price"), third.dense_number("age")) == (5, 4)


def test_random_changes_never_reuse_a_number() -> None:
    draw = np.random.default_rng(5)
    schema, rows = FIRST, {0: "user", 1: "item"}
    for _ in range(300):
        names = [name for name in "abcdefgh" if draw.random() < 0.5] or ["a"]
        draw.shuffle(names)
        share = {name: names[0] for name in names[1:] if draw.random() < 0.3}
        before = schema
        schema = Schema(labels=("click",), categorical=tuple(names), share=share).continuing(before)
        assert schema.continuing(before) == schema
        for number, name in schema.owner_names().items():
            if number in before.owner_names():
                assert before.number(name) == number
            else:
                assert number not in rows
            rows[number] = name


def test_a_log_that_has_used_up_its_numbers_says_so() -> None:
    full = replace(FIRST, numbers={"user": 0, "item": 1}, next_number=CROSSES)
    with pytest.raises(ValueError, match="more than it can number: start a new log"):
        replace(FIRST, categorical=("user", "item", "shop")).continuing(full)


@pytest.mark.parametrize(
    "changes", [{"numbers": {"user": 0}, "next_number": 3}, {"numbers": {"user": 0, "item": 0}, "next_number": 3}]
)
def test_numbers_that_do_not_fit_the_features_are_refused(changes) -> None:
    with pytest.raises(ValueError, match="numbers must"):
        replace(FIRST, **changes)
