import json
from dataclasses import replace

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.erasure_filter import Erasure, ErasureFilter
from springtide.stream.positions import Partition, Position
from springtide_client.keys import MISSING_ID, hash_string
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    categorical=("user", "item"),
    multi_value=("tags",),
    sequence=("last",),
    share={"last": "item"},
)
CLICKS = Partition("clicks", 0)
BOB, TEA = hash_string(b"bob"), hash_string(b"tea")


def decode(records: list[dict]):
    raw = RawRecords.from_messages(CLICKS, [json.dumps({"click": 1, **record}).encode() for record in records])
    return Decoder(SCHEMA).decode(raw, 0)


def filter_of(*keys: tuple[int, int], until: int, topic_id: str = "t") -> ErasureFilter:
    return ErasureFilter(SCHEMA, [Erasure(keys, {CLICKS: Position(topic_id, until)})])


RECORDS = [
    {"user": "bob", "item": "tea", "tags": ["bob", "red"], "last": ["tea", 7]},
    {"user": "ann", "item": 7, "tags": [], "last": ["tea", "tea"]},
    {"user": "bob", "item": "tea", "tags": ["red"], "last": [7, "tea", 8]},
]


def test_an_erased_id_is_dropped_before_its_erasure_and_kept_after_it():
    columns = filter_of((0, BOB), (1, TEA), until=2).apply(decode(RECORDS), CLICKS, "t")
    ann = hash_string(b"ann")
    assert columns.features.categorical_NC.tolist() == [[MISSING_ID, MISSING_ID], [ann, 7], [BOB, TEA]]
    tags, last = columns.features.lists
    assert tags.offsets.tolist() == [0, 2, 2, 3]  # the string of another feature is another key
    assert (last.ids_M.tolist(), last.offsets.tolist()) == ([7, 7, TEA, 8], [0, 1, 1, 4])
    assert len(columns) == 3


def test_the_weight_of_an_erased_id_goes_with_it():
    schema = replace(SCHEMA, weighted=("tags",))
    record = json.dumps({"click": 1, "tags": {"red": 0.5, "bob": 2, "7": -1}}).encode()
    columns = Decoder(schema).decode(RawRecords.from_messages(CLICKS, [record, record]), 0)
    erased = ErasureFilter(schema, [Erasure([(2, BOB)], {CLICKS: Position("t", 1)})])
    (tags, _) = erased.apply(columns, CLICKS, "t").features.lists
    assert tags.offsets.tolist() == [0, 2, 5]
    assert tags.weights_M.tolist() == [0.5, -1, 0.5, 2, -1]


def test_the_string_of_an_erased_id_is_dropped_and_replayed_before_the_id_can_return():
    erasure_filter = filter_of((0, BOB), until=2)
    early = decode(RECORDS[:2])
    assert "bob" in early.id_strings.strings
    # as a tag it is another key, whose string stays
    columns = erasure_filter.apply(early, CLICKS, "t")
    strings = set(zip(columns.id_strings.features.tolist(), columns.id_strings.strings, strict=True))
    assert strings == {(0, "ann"), (1, "tea"), (2, "bob"), (2, "red")}
    assert not erasure_filter.needs_string_replay(CLICKS, 2)
    assert erasure_filter.needs_string_replay(CLICKS, 3)
    erasure_filter.on_string_replay()
    assert not erasure_filter.needs_string_replay(CLICKS, 4)
    whole = filter_of((0, BOB), until=2).apply(decode(RECORDS), CLICKS, "t")
    assert (0, "bob") in zip(whole.id_strings.features.tolist(), whole.id_strings.strings, strict=True)


def test_erasures_in_another_topic_of_the_same_name_drop_nothing():
    columns = decode(RECORDS)
    same = filter_of((0, BOB), until=3).apply(columns, CLICKS, "re-created")
    assert np.array_equal(same.features.categorical_NC, columns.features.categorical_NC)


def test_an_erasure_affects_a_replay_that_starts_before_it():
    erasure = Erasure(((0, 1),), {CLICKS: Position("t", 5), Partition("clicks", 1): Position("t", 0)})
    assert erasure.affects_replay_from({CLICKS: Position("t", 4)})
    assert erasure.affects_replay_from({})
    assert not erasure.affects_replay_from({CLICKS: Position("t", 5)})
    assert not erasure.affects_replay_from({CLICKS: Position("re-created", 0)})
