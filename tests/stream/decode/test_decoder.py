import json

import numpy as np
import pytest

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import DecodePipeline, Decoder
from springtide.stream.decode.erasure_filter import Erasure, ErasureFilter
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.positions import Partition, Position
from springtide_client.encode import encode_instances
from springtide_client.keys import MISSING_ID, encode_id, hash_string
from springtide_client.schema import Schema

NOW_MS = 1_700_000_000_000
CLICKS = Partition("clicks", 3)
SCHEMA = Schema(
    labels=("click",),
    timestamp="ts",
    weight="w",
    categorical=("user", "item"),
    multi_value=("genres",),
    sequence=("last",),
    dense=("age", "price"),
    share={"last": "item"},
    max_length={"genres": 2, "last": 3},
)
GOOD = {
    "click": 1,
    "ts": NOW_MS - 7,
    "user": 5,
    "item": "a",
    "genres": ["x", 2, "z"],
    "last": ["a", "b", None, 4, 5],
    "age": 1.5,
    "other": {"deep": [1, {"é": "\\"}]},
}


def decode(values, schema=SCHEMA, **options):
    raw = RawRecords.from_messages(CLICKS, values, **options)
    return Decoder(schema, DecodeConfig(max_message_bytes=2000)).decode(raw, NOW_MS)


def dumps(record):
    return json.dumps(record).encode()


def test_a_good_record_is_a_row():
    columns = decode([dumps(GOOD)], record_ms=[NOW_MS], offsets=[41])
    assert columns.dead_letters == ()
    assert columns.end_offsets == {CLICKS: 42}
    assert columns.offset_N.tolist() == [41]
    assert columns.partitions == (CLICKS,)
    assert columns.labels_NL.tolist() == [[1.0]]
    assert columns.weights_N.tolist() == [1.0]
    assert columns.event_ms_N.tolist() == [NOW_MS - 7]
    expected = encode_instances(SCHEMA, [GOOD])
    assert (columns.features.categorical_NC == expected.categorical_NC).all()
    np.testing.assert_array_equal(columns.features.dense_NF, expected.dense_NF)
    for ragged, wanted in zip(columns.features.lists, expected.lists, strict=True):
        assert ragged.ids_M.tolist() == wanted.ids_M.tolist()
        assert ragged.offsets.tolist() == wanted.offsets.tolist()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "bad_json"),
        (b"\xff\xfe", "bad_json"),
        (b'{"click": 1', "bad_json"),
        (b'{"click": 1} x', "bad_json"),
        (b'{"x": "\xed\xa0\x80"}', "bad_json"),
        (b'{"x": "\\ud800"}', "bad_json"),
        (b"[" * 100_0 + b"]" * 100_0, "bad_json"),
        (b"[1]", "wrong_type"),
        (b'"click"', "wrong_type"),
        (b'{"x": NaN}', "not_finite"),
        (b'{"x": -Infinity}', "not_finite"),
        (b'{"x": 1e999}', "not_finite"),
        (dumps({**GOOD, "age": 1e39}), "not_finite"),
        (dumps({**GOOD, "click": None}), "missing_label"),
        (dumps({**GOOD, "click": 2}), "label_range"),
        (dumps({**GOOD, "ts": 5}), "bad_timestamp"),
        (dumps({**GOOD, "user": 0.5}), "wrong_type"),
        (dumps({**GOOD, "genres": "x"}), "wrong_type"),
        (dumps({**GOOD, "other": "x" * 2000}), "too_large"),
    ],
)
def test_a_bad_record_is_a_dead_letter_between_its_neighbours(value, reason):
    columns = decode([dumps(GOOD), value, dumps({**GOOD, "user": 6})], keys=[None, b"k", None])
    assert columns.offset_N.tolist() == [0, 2]
    assert columns.features.categorical_NC[:, 0].tolist() == [5, 6]
    assert columns.features.lists[1].offsets.tolist() == [0, 3, 6]
    assert columns.end_offsets == {CLICKS: 3}
    (dead,) = columns.dead_letters
    assert (dead.partition, dead.offset, dead.reason) == (CLICKS, 1, reason)
    assert (dead.key, dead.value) == (b"k", value)
    assert dead.detail


def test_the_last_of_duplicate_fields_counts():
    columns = decode([dumps(GOOD)[:-1] + b', "user": 8, "us\\u0065r": 9}'])
    assert columns.features.categorical_NC[0, 0] == 9


def test_no_records_give_empty_columns():
    columns = decode([], end=10)
    assert len(columns) == 0
    assert columns.end_offsets == {CLICKS: 10}
    assert columns.features.categorical_NC.shape == (0, 2)


def test_the_string_of_an_id_is_emitted_once():
    decoder = Decoder(SCHEMA)
    raw = RawRecords.from_messages(CLICKS, [dumps(GOOD), dumps(GOOD)])
    emitted = decoder.decode(raw, NOW_MS).id_strings
    item, genres = SCHEMA.number("item"), SCHEMA.number("genres")
    strings = set(zip(emitted.features.tolist(), emitted.ids.tolist(), emitted.strings, strict=True))
    assert strings == {
        (item, hash_string(b"a"), "a"),
        (item, hash_string(b"b"), "b"),
        (genres, hash_string(b"x"), "x"),
        (genres, hash_string(b"z"), "z"),
    }
    assert len(emitted.strings) == 4
    assert decoder.decode(raw, NOW_MS).id_strings.strings == []


def test_strings_of_dead_letters_are_not_emitted():
    columns = decode([dumps({**GOOD, "item": "never", "click": 7})])
    assert columns.id_strings.strings == []


USERS = Schema(labels=("click",), categorical=("user",))
FIRST = Partition("clicks", 0)


def records(*users, first):
    values = [json.dumps({"click": 1, "user": user}).encode() for user in users]
    return RawRecords.from_messages(FIRST, values, offsets=range(first, first + len(users)))


def test_columns_carry_the_id_of_their_topic():
    columns = DecodePipeline(Decoder(USERS)).decode(records("ann", first=0), "t")
    assert columns.topic_ids == {FIRST: "t"}


def test_strings_are_emitted_again_after_a_reset():
    pipeline = DecodePipeline(Decoder(USERS))
    assert pipeline.decode(records("ann", first=0), "t").id_strings.strings == ["ann"]
    assert pipeline.decode(records("ann", first=1), "t").id_strings.strings == []
    pipeline.reset_emitted_strings()
    assert pipeline.decode(records("ann", first=2), "t").id_strings.strings == ["ann"]
    assert pipeline.decode(records("ann", first=3), "t").id_strings.strings == []


def test_the_string_of_an_erased_id_is_emitted_when_the_id_returns():
    erasure = Erasure(((0, hash_string(b"bob")),), {FIRST: Position("t", 2)})
    pipeline = DecodePipeline(Decoder(USERS), ErasureFilter(USERS, [erasure]))
    assert pipeline.decode(records("ann", "bob", first=0), "t").id_strings.strings == ["ann"]
    assert sorted(pipeline.decode(records("bob", "ann", first=2), "t").id_strings.strings) == ["ann", "bob"]
    assert pipeline.decode(records("bob", first=4), "t").id_strings.strings == []


BIASED = Schema(labels=("click",), categorical=("user",), bias=("position", "layout"))
PRESENTED = [{"click": 1, "user": n, "position": n % 4, "layout": None if n % 5 else "grid"} for n in range(3000)]


def decode_presented(values, drop=0.0, first=0, number=3, **settings):
    raw = RawRecords.from_messages(
        Partition("clicks", number), list(map(dumps, values)), offsets=range(first, first + len(values))
    )
    config = DecodeConfig(bias_fields=BIASED.bias, bias_drop=drop, **settings)
    return Decoder(BIASED, config).decode(raw, NOW_MS)


def test_bias_fields_are_decoded_beside_the_features():
    columns = decode_presented([{"click": 2, "user": 1}, *PRESENTED[:20], {"click": 0, "position": "top"}])
    assert len(columns.dead_letters) == 1
    wanted = [(row["position"], row["layout"]) for row in PRESENTED[:20]] + [("top", None)]
    assert columns.features.bias_NB.tolist() == [[encode_id(value)[0] for value in row] for row in wanted]
    assert columns.features.categorical_NC[:20, 0].tolist() == list(range(20))
    assert decode_presented([{"click": 1, "position": 0.5}]).dead_letters[0].reason == "wrong_type"
    assert decode([dumps(GOOD)]).features.bias_NB is None


def test_a_share_of_samples_is_learned_without_bias_the_same_ones_on_every_replay():
    whole = decode_presented(PRESENTED, drop=0.1)
    kept = decode_presented(PRESENTED).features.bias_NB
    is_dropped_N = (whole.features.bias_NB == MISSING_ID).all(axis=1)
    assert abs(is_dropped_N.mean() - 0.1) < 0.02
    np.testing.assert_array_equal(whole.features.bias_NB[~is_dropped_N], kept[~is_dropped_N])
    parts = [decode_presented(PRESENTED[start : start + 77], 0.1, start) for start in range(0, 3000, 77)]
    np.testing.assert_array_equal(np.concatenate([part.features.bias_NB for part in parts]), whole.features.bias_NB)
    other = (decode_presented(PRESENTED, drop=0.1, number=4).features.bias_NB == MISSING_ID).all(axis=1)
    assert 0 < (other & is_dropped_N).sum() < 100
    more = (decode_presented(PRESENTED, drop=0.5).features.bias_NB == MISSING_ID).all(axis=1)
    assert more[is_dropped_N].all()
