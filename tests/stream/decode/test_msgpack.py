"""MessagePack: the columns that JSON gives; every damaged message is a dead letter."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from tests.stream.decode.format_records import (
    NOW_MS,
    SCHEMA,
    assert_dead_between_good,
    assert_same_columns,
    both_paths,
    columns_of_json,
    damaged,
    decode,
    records,
)

CONFIG = DecodeConfig(format="msgpack", max_message_bytes=2000)
GOOD = {"click": 1, "ts": NOW_MS, "item": 5, "name": "ann", "tags": ["x", None], "last": [1], "price": 0.5}
encode = msgspec.msgpack.encode


@settings(max_examples=100, deadline=None)
@given(st.lists(records(), min_size=1, max_size=6))
def test_random_records_give_the_columns_that_json_gives(rows) -> None:
    expected = columns_of_json(rows)
    for decoder in both_paths(SCHEMA, CONFIG):
        assert_same_columns(decode([encode(row) for row in rows], decoder), expected)


def is_record(message: bytes) -> bool:
    try:
        return isinstance(msgspec.msgpack.decode(message, type=dict[str, object]), dict)
    except (msgspec.MsgspecError, ValueError):
        return False


def test_a_thousand_damaged_messages_are_dead_letters() -> None:
    bad = damaged([encode(GOOD)], is_record)
    assert_dead_between_good(encode(GOOD), bad, Decoder(SCHEMA, CONFIG), {"bad_msgpack", "wrong_type"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"click": 2}, "label_range"),
        ({"click": None}, "missing_label"),
        ({"ts": 5}, "bad_timestamp"),
        ({"ts": False}, "bad_timestamp"),
        ({"name": b"bytes"}, "wrong_type"),
        ({"price": float("nan")}, "not_finite"),
        ({"tags": "x"}, "wrong_type"),
        ({"tags": {"x": 1}}, "wrong_type"),
        ({"item": 0.5}, "wrong_type"),
        ({"unknown": "x" * 2000}, "too_large"),
        ({5: 1}, "bad_msgpack"),
        ({"unknown": {5: 1}}, "bad_msgpack"),
    ],
)
def test_a_refused_message_is_a_dead_letter_with_its_reason(changes, reason) -> None:
    assert_dead_between_good(encode(GOOD), [encode({**GOOD, **changes})], Decoder(SCHEMA, CONFIG), {reason})


def test_a_timestamp_is_milliseconds() -> None:
    time = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    columns = decode([encode({**GOOD, "ts": time})], Decoder(SCHEMA, CONFIG))
    assert columns.event_ms_N.tolist() == [NOW_MS]
