"""A format is declared once: the decoder, the configuration and the tools that send messages follow from it."""

import json

import numpy as np
import pytest

from springtide.stream.columns import RawRecords
from springtide.stream.config import SourceConfig
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import FORMATS, DecodeConfig, MessageCodec, MessageFormat
from springtide.stream.positions import Partition
from springtide_client.keys import encode_id
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("user",), sequence=("last",), dense=("age",))
CLICKS = Partition("clicks", 0)
JSONS = [b'{"click": 1, "user": "ann", "last": [1, "b"]}', b'{"click": 0, "age": 2.5, "other": {"a": null}}']


class BackwardCodec(MessageCodec):
    """A format with no fast path: JSON that is written backwards."""

    def __init__(self, config: DecodeConfig) -> None: ...

    def load(self, value: bytes) -> object:
        return json.loads(value[::-1])

    def from_json(self, message: bytes) -> bytes:
        return message[::-1]


BACKWARD = MessageFormat(name="backward", bad_reason="bad_backward", codec=BackwardCodec)


def decode(values: list[bytes]):
    raw = RawRecords.from_messages(CLICKS, values)
    return Decoder(SCHEMA, DecodeConfig()).decode(raw, 0)


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_json_message_means_the_same_in_a_format_without_settings(name: str) -> None:
    expected, config = decode(JSONS), DecodeConfig(format=name)
    raw = RawRecords.from_messages(CLICKS, [config.open_codec().encode(message) for message in JSONS])
    assert_equal(Decoder(SCHEMA, config).decode(raw, 0), expected)


def test_a_format_without_a_fast_path_is_decoded_by_the_reference(monkeypatch) -> None:
    expected = decode(JSONS)
    monkeypatch.setitem(FORMATS, "json", BACKWARD)
    assert Decoder(SCHEMA).fast_path is None
    assert_equal(decode([message[::-1] for message in JSONS]), expected)


def assert_equal(columns, expected) -> None:
    assert columns.dead_letters == ()
    assert columns.labels_NL.tolist() == expected.labels_NL.tolist()
    assert columns.features.categorical_NC.tolist() == expected.features.categorical_NC.tolist()
    assert columns.features.lists[0].ids_M.tolist() == expected.features.lists[0].ids_M.tolist()
    np.testing.assert_array_equal(columns.features.dense_NF, expected.features.dense_NF)
    assert sorted(columns.id_strings.strings) == sorted(expected.id_strings.strings) == ["ann", "b"]


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_field_inside_of_an_object_has_a_path(name: str) -> None:
    schema = Schema(labels=("click",), categorical=("user.id", "user.home.city"), dense=("price", "price.net"))
    messages = [
        {"click": 1, "user": {"id": "ann", "home": {"city": 5}}, "price": 1, "price.net": 2},
        {"click": 1, "user.id": "whole name", "user": {"id": "inner", "home": None}},
        {"click": 1, "user": None},
        {"click": 1, "user": 5},
        {"click": 1, "user": {"home": [1]}},
        {"click": 1, "user.id": 5, "user.home.city": 6, "user": 7},
    ]
    codec = (config := DecodeConfig(format=name)).open_codec()
    values = [codec.from_json(json.dumps(message).encode()) for message in messages]
    columns = Decoder(schema, config).decode(RawRecords.from_messages(CLICKS, values), 0)
    assert columns.offset_N.tolist() == [0, 1, 2, 5]
    ids = [[encode_id(value)[0] for value in row] for row in [("ann", 5), ("whole name", None), (None, None), (5, 6)]]
    assert columns.features.categorical_NC.tolist() == ids
    np.testing.assert_array_equal(columns.features.dense_NF[0], [1, 2])
    assert [(letter.reason, letter.detail) for letter in columns.dead_letters] == [
        ("wrong_type", "user.id: int is not an object"),
        ("wrong_type", "user.home.city: list is not an object"),
    ]


def test_a_message_of_another_format_is_a_dead_letter_with_the_formats_reason(monkeypatch) -> None:
    monkeypatch.setitem(FORMATS, "json", BACKWARD)
    reasons = [letter.reason for letter in decode([JSONS[0], b"]1["]).dead_letters]
    assert reasons == ["bad_backward", "wrong_type"]


def test_what_is_no_json_is_sent_as_it_is() -> None:
    assert DecodeConfig(format="msgpack").open_codec().encode(b"{") == b"{"
    assert BackwardCodec(DecodeConfig()).encode(b"{}") == b"}{"


def test_an_unknown_format_is_refused_by_the_configuration() -> None:
    with pytest.raises(ValueError, match=r'format must be .*"json".*, not "jsno"'):
        SourceConfig(bootstrap_servers="localhost:9092", format="jsno")


def test_an_incomplete_format_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="codec"):
        MessageFormat(name="half", bad_reason="bad_half")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="needs a name and a reason"):
        MessageFormat(name="half", bad_reason="", codec=BackwardCodec)
