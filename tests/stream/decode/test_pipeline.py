import json

from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.erasure_filter import Erasure, ErasureFilter
from springtide.stream.decode.pipeline import DecodePipeline
from springtide.stream.positions import Partition, Position
from springtide.stream.records import RawRecords
from springtide_client.keys import hash_string
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user",))
CLICKS = Partition("clicks", 0)


def records(*users, first):
    values = [json.dumps({"click": 1, "user": user}).encode() for user in users]
    return RawRecords.from_messages(CLICKS, values, offsets=range(first, first + len(users)))


def test_columns_carry_the_id_of_their_topic():
    columns = DecodePipeline(Decoder(SCHEMA)).decode(records("ann", first=0), "t")
    assert columns.topic_ids == {CLICKS: "t"}


def test_strings_are_emitted_again_after_a_reset():
    pipeline = DecodePipeline(Decoder(SCHEMA))
    assert pipeline.decode(records("ann", first=0), "t").id_strings.strings == ["ann"]
    assert pipeline.decode(records("ann", first=1), "t").id_strings.strings == []
    pipeline.reset_emitted_strings()
    assert pipeline.decode(records("ann", first=2), "t").id_strings.strings == ["ann"]
    assert pipeline.decode(records("ann", first=3), "t").id_strings.strings == []


def test_the_string_of_an_erased_id_is_emitted_when_the_id_returns():
    erasure = Erasure(((0, hash_string(b"bob")),), {CLICKS: Position("t", 2)})
    pipeline = DecodePipeline(Decoder(SCHEMA), ErasureFilter(SCHEMA, [erasure]))
    assert pipeline.decode(records("ann", "bob", first=0), "t").id_strings.strings == ["ann"]
    assert sorted(pipeline.decode(records("bob", "ann", first=2), "t").id_strings.strings) == ["ann", "bob"]
    assert pipeline.decode(records("bob", first=4), "t").id_strings.strings == []
