"""Ids are hidden in records before a forgetting, and in no other: in every kind of feature, with their texts."""

import json

import numpy as np
from springtide_client.keys import MISSING_ID, hash_string
from springtide_client.schema import Schema

from stream.decode.decoder import Decoder
from stream.flow.erasure_filter import Erasure, ErasureFilter
from stream.positions import Partition, Position
from stream.records import RawRecords

SCHEMA = Schema(
    labels=("click",),
    categorical=("user", "item"),
    multi_value=("tags",),
    sequence=("last",),
    share={"last": "item"},
)
CLICKS = Partition("clicks", 0)
BOB, TEA = hash_string(b"bob"), hash_string(b"tea")


def decoded(records: list[dict]):
    raw = RawRecords.from_messages(CLICKS, [json.dumps({"click": 1, **record}).encode() for record in records])
    return Decoder(SCHEMA).decode(raw, 0)


def hidden(*keys: tuple[int, int], until: int, topic_id: str = "t") -> ErasureFilter:
    return ErasureFilter(SCHEMA, [Erasure(keys, {CLICKS: Position(topic_id, until)})])


RECORDS = [
    {"user": "bob", "item": "tea", "tags": ["bob", "red"], "last": ["tea", 7]},
    {"user": "ann", "item": 7, "tags": [], "last": ["tea", "tea"]},
    {"user": "bob", "item": "tea", "tags": ["red"], "last": [7, "tea", 8]},
]


def test_an_id_is_missing_before_its_forgetting_and_there_after_it():
    columns = hidden((0, BOB), (1, TEA), until=2).apply(decoded(RECORDS), CLICKS, "t")
    ann = hash_string(b"ann")
    assert columns.features.categorical_NC.tolist() == [[MISSING_ID, MISSING_ID], [ann, 7], [BOB, TEA]]
    tags, last = columns.features.lists
    assert tags.offsets.tolist() == [0, 2, 2, 3]  # the text of another feature is another key
    assert (last.ids_M.tolist(), last.offsets.tolist()) == ([7, 7, TEA, 8], [0, 1, 1, 4])
    assert len(columns) == 3


def test_a_hidden_text_is_not_handed_on_and_is_owed_until_its_id_may_come_again():
    hiding = hidden((0, BOB), until=2)
    early = decoded(RECORDS[:2])
    assert "bob" in early.id_strings.strings
    # as a tag it is another key, whose text stays
    columns = hiding.apply(early, CLICKS, "t")
    told = set(zip(columns.id_strings.features.tolist(), columns.id_strings.strings, strict=True))
    assert told == {(0, "ann"), (1, "tea"), (2, "bob"), (2, "red")}
    assert not hiding.needs_string_replay(CLICKS, 2)
    assert hiding.needs_string_replay(CLICKS, 3)
    assert not hiding.needs_string_replay(CLICKS, 4)
    whole = hidden((0, BOB), until=2).apply(decoded(RECORDS), CLICKS, "t")
    assert (0, "bob") in zip(whole.id_strings.features.tolist(), whole.id_strings.strings, strict=True)


def test_offsets_of_another_topic_of_the_same_name_hide_nothing():
    columns = decoded(RECORDS)
    same = hidden((0, BOB), until=3).apply(columns, CLICKS, "made anew")
    assert np.array_equal(same.features.categorical_NC, columns.features.categorical_NC)


def test_a_partition_with_a_slash_in_its_topic_is_read_back():
    partition = Partition("a/b", 3)
    assert Partition.parse(str(partition)) == partition


def test_a_forgetting_is_ahead_of_whoever_reads_from_before_it():
    forgetting = Erasure(((0, 1),), {CLICKS: Position("t", 5), Partition("clicks", 1): Position("t", 0)})
    assert forgetting.affects_replay_from({CLICKS: Position("t", 4)})
    assert forgetting.affects_replay_from({})
    assert not forgetting.affects_replay_from({CLICKS: Position("t", 5)})
    assert not forgetting.affects_replay_from({CLICKS: Position("made anew", 0)})
