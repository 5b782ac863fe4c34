"""`[memory]`, `[sequences.*]`, `[remember]`: what they make of the schema, and what they refuse."""

from pathlib import Path

import pytest

from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide_client.schema import Schema
from tests.support.config import CLICKS, Section, config_in

CLICKED: Section = {"key": "user_id", "when": "click", "keep": ["item_id"], "last": 20, "gap": True}


def load(folder: Path, *changes: Section | str) -> Config:
    return config_in(folder, CLICKS, *changes)


def test_a_sequence_is_a_feature_that_shares_rows_and_that_records_do_not_bring(tmp_path: Path) -> None:
    schema = load(tmp_path, {"sequences": {"clicked": CLICKED}, "remember": {"item_id": ["age", "genres"]}}).schema
    assert schema.sequence == ("last_items", "clicked.item_id", "clicked.gap")
    assert schema.number("clicked.item_id") == schema.number("item_id")
    assert schema.length_limit("clicked.item_id") == 20
    recorded = schema.recorded
    assert recorded.sequence == ("last_items",)
    assert [recorded.number(name) for name in recorded.owners] == [schema.number(name) for name in recorded.owners]
    assert recorded.dense_number("age") == schema.dense_number("age")
    numbers = [schema.memory_number(memory) for memory in schema.memories]
    assert len({*numbers, *map(schema.number, schema.owners), schema.dense_number("age")}) == schema.unused_number - 2
    assert Schema.from_json(schema.to_json()) == schema


def test_without_them_the_schema_is_as_it_was(tmp_path: Path) -> None:
    schema = load(tmp_path).schema
    assert schema.recorded is schema
    assert b"memories" not in schema.to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequences": {"clicked": {**CLICKED, "key": "user"}}}, "key: 'user' is none of"),
        ({"sequences": {"clicked": {**CLICKED, "keep": ["genres"]}}}, "keep: 'genres' is none of"),
        ({"sequences": {"clicked": {**CLICKED, "keep": ["item_id", "item_id"]}}}, "names a field twice"),
        ({"sequences": {"clicked": {**CLICKED, "when": "order"}}}, "when: 'order' is none of"),
        ({"sequences": {"clicked": {**CLICKED, "distinct": "user_id"}}}, "distinct: 'user_id' is none of"),
        ({"sequences": {"clicked": {**CLICKED, "last": 4000}}}, "4096 are possible"),
        ({"sequences": {"clicked": CLICKED}, "memory": {"delay_seconds": 60}}, "raise tick_seconds to"),
        ({"remember": {"item_id": "age"}}, "must be a list of fields"),
        ({"remember": {"item": ["age"]}}, "'item' is none of"),
        ({"remember": {"item_id": ["price"]}}, "'price' is none of"),
        ({"remember": {"item_id": ["age"], "user_id": ["age"]}}, "names 'age' twice"),
        ({"remember": {"user_id": ["item_id"]}, "sequences": {"clicked": CLICKED}}, "is in a sequence"),
        ({"sequences": {"clicked": CLICKED}, "model": {"name": "two_tower"}}, "do not go with"),
        (
            {"sequences": {"shown": {**CLICKED, "when": "shown"}}, "negatives": {"rate": 0.1, "by": ["user_id"]}},
            "drops",
        ),
        ({"remember": {"item_id": ["genres"]}, "features": {"genres": {"weighted": True}}}, "cannot be remembered yet"),
        ({"sequences": {"last": {**CLICKED, "lats": 3}}}, "did you mean"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: Section, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, changes)


def test_a_longer_tick_makes_room_for_a_longer_delay(tmp_path: Path) -> None:
    memory = {"delay_seconds": 60, "tick_seconds": 10}
    assert load(tmp_path, {"sequences": {"clicked": CLICKED}, "memory": memory}).schema.memories[0].pending_ticks == 10


JOINED: Section = {
    "join": {"key": ["user_id"]},
    "labels": {"click": {"topic": "clicked", "window_seconds": 600}},
    "sequences": {"clicked": CLICKED},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "known when its window ends"),
        ({"memory": {"delay_seconds": 600, "tick_seconds": 60, "known": "record"}}, "known when its window ends"),
        (
            {
                "memory": {"delay_seconds": 600, "tick_seconds": 60},
                "labels": {"click": {"until_seconds": 7200, "late": "settle"}},
            },
            "learned more than once",
        ),
    ],
)
def test_joined_impressions_are_known_when_they_are_learned(tmp_path: Path, changes: Section, message: str) -> None:
    assert load(tmp_path, JOINED, {"memory": {"delay_seconds": 600, "tick_seconds": 60}}).schema.memories
    with pytest.raises(UserError, match=message):
        load(tmp_path, JOINED, changes)


ITEM: Section = {
    "key": "item_id",
    "count": ["shown", "click"],
    "half_lives": ["10m", "1h"],
    "rates": {"ctr": ["click", "shown"]},
}


def test_counters_are_numbers_that_records_do_not_bring(tmp_path: Path) -> None:
    counters = {"item": ITEM, "all": {"key": [], "count": ["click"], "half_lives": ["1d"], "features": ["click.1d"]}}
    schema = load(tmp_path, {"counters": counters, "sequences": {"clicked": CLICKED}}).schema
    made = "item.shown.10m", "item.shown.1h", "item.ctr.10m", "item.ctr.1h", "item.age", "all.click.1d"
    assert schema.dense == ("age", *made)
    recorded = schema.recorded
    assert (recorded.dense, recorded.counters) == (("age",), ())
    assert recorded.dense_number("age") == schema.dense_number("age")
    numbers = [schema.memory_number(one) for one in schema.remembered]
    others = {*map(schema.number, schema.owners), *schema.dense_numbers}
    assert len({*numbers, *others}) == len(numbers) + len(others) == schema.unused_number - 2
    assert Schema.from_json(schema.to_json()) == schema
    assert b"counters" not in load(tmp_path).schema.to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": ["shown", "order"]}, r"\[counters.item\] count: 'order' is none of the labels"),
        ({"key": "item"}, "key: 'item' is none of"),
        ({"key": ["genres"]}, "key: 'genres' is none of"),
        ({"key": ["item_id", "item_id"]}, "two different ones"),
        ({"key": ["item_id", "user_id", "item_id"]}, "two different ones"),
        ({"half_lives": ["10 minutes"]}, "'10 minutes' is not a time such as 30s"),
        ({"half_lives": ["0m"]}, "not a time such as"),
        ({"half_lives": ["1h", "1h"]}, "half_lives names '1h' twice"),
        ({"count": ["click", "click"]}, "count names 'click' twice"),
        ({"half_lives": [f"{n}m" for n in range(1, 18)]}, "35 features.* 1 to 32 are possible"),
        ({"features": []}, "1 to 32 are possible"),
        ({"features": ["age", "age"]}, "1 to 32 are possible"),
        ({"features": ["shown.1d"]}, "features: 'shown.1d' is none of the numbers that it makes"),
        ({"rates": {"ctr": ["click"]}}, "'ctr' has 1 events: give two"),
        ({"rates": {"click": ["click", "shown"]}}, "no name of count"),
        ({"rates": {"ctr": ["click", "order"]}}, "rates ctr: 'order' is none of count"),
        ({"key": []}, "everything is what rates are beside: name a key"),
        ({"prior": 0}, "prior"),
        ({"half_lives": ["99999999999999d"]}, "more than 4,194,304 ticks"),
        ({"half_lives": ["60d"], "rates": {}}, "tick_seconds to 1.236 or more"),
        ({"half_lives": ["60s", "1m"], "rates": {}}, "two are equal in ticks"),
        ({"rates": {"ctr": ["click", "click"]}}, "beside itself"),
        ({"halflives": ["1h"]}, "did you mean"),
    ],
)
def test_mistakes_of_counters_are_named(tmp_path: Path, changes: Section, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, {"counters": {"item": {**ITEM, **changes}}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": {"dense": ["age", "item.age"]}}, "makes 'item.age', which .schema. has too"),
        ({"memory": {"tick_seconds": 3600}}, "'10m' is shorter than a tick"),
        ({"memory": {"delay_seconds": 60}}, "raise tick_seconds to"),
        ({"model": {"name": "two_tower"}}, "do not go with"),
        ({"negatives": {"rate": 0.1, "by": ["user_id"]}}, "drops most of what was shown"),
        ({"labels": {"click": {"loss": "mse"}}}, "'click' is a value"),
        ({"sequences": {"item": CLICKED}}, "has the same name"),
        ({"remember": {"user_id": ["item_id"]}}, "is the key of a counter"),
        (
            {"join": {"key": ["user_id"]}, "labels": {"click": {"topic": "clicked", "window_seconds": 600}}},
            "known when its window ends",
        ),
    ],
)
def test_counters_fit_the_other_settings(tmp_path: Path, changes: Section, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, {"counters": {"item": ITEM}}, changes)
