"""Avro: the columns that JSON gives; every damaged message is a dead letter; schemas from files and a registry."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.decode.rows import DecodedRows
from springtide.stream.errors import FormatError
from springtide_client.schema import Schema
from tests.stream.decode.format_records import (
    CLICKS,
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
from tests.support.schema_registry import running_registry

NESTED = Schema(
    labels=("click",),
    timestamp="ts",
    categorical=("user.id", "user.home.city", "kind"),
    sequence=("user.last",),
    dense=("user.age",),
)


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def record(name, *fields):
    return {"type": "record", "name": name, "fields": list(fields)}


ENUM = {"type": "enum", "name": "Kind", "symbols": ["view", "cart", "buy", "seven"]}
USER = record(
    "User",
    field("id", ["null", "string"]),
    field("home", ["null", record("Home", field("city", "string"))]),
    field("last", {"type": "array", "items": ["null", "long"]}),
    field("age", ["int", "null"]),
    field("more", {"type": "map", "values": "string"}),
)
CLICK = record(
    "Click",
    field("click", "double"),
    field("order", ["null", "float"]),
    field("ts", "long"),
    field("weight", ["null", "float"]),
    field("item", ["long", "null"]),
    field("name", ["null", "string"]),
    field("unknown", ["string", "null"]),
    field("kind", ENUM),
    field("bought", ["null", "boolean"]),
    field("tags", {"type": "array", "items": "string"}),
    field("last", {"type": "array", "items": "long"}),
    field("price", ["null", "double"]),
    field("ratio", ["null", "float"]),
    field("user", ["null", USER]),
)
GOOD = {
    "click": 1,
    "order": None,
    "ts": NOW_MS,
    "weight": 2,
    "item": 5,
    "name": "ann",
    "unknown": "é",
    "kind": "buy",
    "bought": True,
    "tags": ["a", "b"],
    "last": [1, 2],
    "price": 0.5,
    "ratio": None,
    "user": None,
}
users = st.fixed_dictionaries(
    {
        "id": st.none() | st.text(max_size=5),
        "home": st.none() | st.fixed_dictionaries({"city": st.text(max_size=5)}),
        "last": st.lists(st.none() | st.integers(-9, 2**40), max_size=4),
        "age": st.none() | st.integers(-(2**31), 2**31 - 1),
        "more": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    }
)
avro_records = records(kind=st.sampled_from(ENUM["symbols"]), user=st.none() | users)


def write(schema, row) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def read(schema, message) -> bool:
    """Whether fastavro takes the message."""
    stream = io.BytesIO(message)
    try:
        fastavro.schemaless_reader(stream, fastavro.parse_schema(schema))
    except Exception:
        return False
    return stream.tell() == len(message)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("avro") / "click.avsc"
    path.write_text(json.dumps(CLICK))
    return DecodeConfig(format="avro", schema_file=path, max_message_bytes=5000)


def one_schema(tmp_path, schema, reader=None, **more):
    (tmp_path / "writer.avsc").write_text(json.dumps(schema))
    if reader is not None:
        (tmp_path / "reader.avsc").write_text(json.dumps(reader))
        more["reader_schema_file"] = tmp_path / "reader.avsc"
    return DecodeConfig(format="avro", schema_file=tmp_path / "writer.avsc", **more)


@settings(max_examples=100, deadline=None)
@given(st.lists(avro_records, min_size=1, max_size=6))
def test_random_records_give_the_columns_that_json_gives(config, rows) -> None:
    for schema in (SCHEMA, NESTED):
        expected = columns_of_json(rows, schema)
        for decoder in both_paths(schema, config):
            assert_same_columns(decode([write(CLICK, row) for row in rows], decoder), expected)


def test_a_thousand_damaged_messages_are_dead_letters(config) -> None:
    good = write(CLICK, GOOD)
    bad = damaged([good], lambda message: read(CLICK, message))
    for schema in (SCHEMA, NESTED):
        assert_dead_between_good(good, bad, Decoder(schema, config), {"bad_avro"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"click": 2}, "label_range"),
        ({"ts": 5}, "bad_timestamp"),
        ({"price": float("nan")}, "not_finite"),
        ({"unknown": "x" * 5000}, "too_large"),
        ({"weight": -1}, "wrong_type"),
    ],
)
def test_a_refused_message_is_a_dead_letter_with_its_reason(config, changes, reason) -> None:
    assert_dead_between_good(write(CLICK, GOOD), [write(CLICK, {**GOOD, **changes})], Decoder(SCHEMA, config), {reason})


def test_logical_types_are_numbers_and_text(tmp_path) -> None:
    logical = {
        "ts": {"type": "long", "logicalType": "timestamp-micros"},
        "day": {"type": "int", "logicalType": "date"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "fixed": {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 0},
        "id": {"type": "string", "logicalType": "uuid"},
        "time": {"type": "int", "logicalType": "time-millis"},
    }
    schema = record("Sale", field("label", "int"), *(field(name, kind) for name, kind in logical.items()))
    ours = Schema(labels=("label",), timestamp="ts", categorical=("id", "fixed"), dense=("day", "price", "time"))
    time = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    row = {"label": 1, "ts": time, "day": date(1970, 1, 3), "price": Decimal("12.34"), "fixed": Decimal(77)}
    row |= {"id": UUID(int=5), "time": time.time()}
    plain = {"label": 1, "ts": NOW_MS, "day": 2 * 86_400_000, "price": 12.34, "fixed": 77, "id": str(UUID(int=5))}
    plain["time"] = NOW_MS % 86_400_000
    for decoder in both_paths(ours, one_schema(tmp_path, schema)):
        assert_same_columns(decode([write(schema, row)], decoder), columns_of_json([plain], ours))


PART = {"type": "fixed", "name": "Part", "size": 4}
SALE = record(
    "Sale",
    field("label", "int"),
    field("price", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}]),
    field("part", {**PART, "logicalType": "decimal", "precision": 5, "scale": 4}),
    field("item", {"type": "bytes", "logicalType": "decimal", "precision": 30}),
    field("id", {"type": "string", "logicalType": "uuid"}),
)
SALE_SCHEMA = Schema(labels=("label",), categorical=("item", "id"), dense=("price", "part"))


def whole_decimals(most) -> st.SearchStrategy:
    return st.integers(-most, most) | st.integers(-300, 300)


def needs_reference(decoder: Decoder, values) -> list[bool]:
    raw = RawRecords.from_messages(CLICKS, values)
    return decoder.fast_path.parse(raw, DecodedRows(decoder.schema, len(values)), NOW_MS)[0].tolist()


@settings(max_examples=100, deadline=None)
@given(st.none() | whole_decimals(10**30 - 1), whole_decimals(10**5 - 1), whole_decimals(10**30 - 1), st.uuids())
def test_decimals_give_what_the_library_gives(tmp_path_factory, price, part, item, uuid) -> None:
    decimals = {"price": None if price is None else Decimal(price).scaleb(-2, Context(prec=40))}
    decimals |= {"part": Decimal(part).scaleb(-4), "item": Decimal(item)}
    value = write(SALE, {"label": 1, **decimals, "id": uuid})
    fast, slow = both_paths(SALE_SCHEMA, one_schema(tmp_path_factory.getbasetemp(), SALE))
    assert_same_columns(decode([value], fast), decode([value], slow))
    if max(abs(price or 0), abs(item)) < 10**15:
        assert needs_reference(fast, [value]) == [False]


def test_uuids_and_decimals_that_are_written_in_another_way_give_what_the_library_gives(tmp_path) -> None:
    plain = record("Sale", field("label", "int"), field("price", ["null", "bytes"]), field("part", PART))
    plain["fields"] += [field("item", "bytes"), field("id", "string")]
    good = {"label": 1, "price": b"\0\0\1", "part": b"\0\0\0\1", "item": b"\xff", "id": str(UUID(int=5))}
    others = [{}, {"id": str(UUID(int=-1 % 2**128)).upper()}, {"id": UUID(int=9).hex}, {"id": "none"}, {"item": b""}]
    others += [{"part": b"\x7f\0\0\0"}, {"item": b"\0" * 20 + b"\5"}, {"item": b"\x80" + b"\0" * 8}]
    values = [write(plain, {**good, **changes}) for changes in others]
    fast, slow = both_paths(SALE_SCHEMA, one_schema(tmp_path, SALE))
    found, expected = decode(values, fast), decode(values, slow)
    assert_same_columns(found, expected)
    assert found.dead_letters == expected.dead_letters


WRITER = record(
    "Click",
    field("gone", {"type": "array", "items": "string"}),
    field("label", "int"),
    field("u", ["null", record("User", field("id", "string"), field("more", "long"), field("size", "float"))]),
    field("kind", {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}),
    field("tags", {"type": "array", "items": "int"}),
)
READER_USER = record(
    "User",
    field("height", "double", aliases=["size"]),
    field("extra", ["null", "int"], default=None),
    field("id", "string"),
)
READER = record(
    "Click",
    field("kind", {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}),
    field("user", ["null", READER_USER], aliases=["u"]),
    field("label", ["null", "long"]),
    field("unused", "string", default="x"),
    field("tags", {"type": "array", "items": "long"}),
)
RESOLVED = Schema(
    labels=("label",),
    categorical=("user.id", "user.more", "kind", "gone"),
    sequence=("tags",),
    dense=("user.height", "user.extra"),
)


@pytest.mark.parametrize(
    ("changes", "is_fast"),
    [
        ({}, True),
        ({"name": "Other"}, False),
        ({"label": "double"}, False),
        ({"kind": {"type": "enum", "name": "Kind", "symbols": ["a"]}}, False),
        ({"tags": "string"}, False),
    ],
)
def test_resolution_without_the_library_gives_what_it_gives(tmp_path, changes, is_fast) -> None:
    fields = [{**each, "type": changes.get(each["name"], each["type"])} for each in READER["fields"]]
    reader = {**READER, "name": changes.get("name", "Click"), "fields": fields}
    rows = [
        {"gone": ["x"], "label": 1, "u": {"id": "ann", "more": 5, "size": 0.5}, "kind": "b", "tags": [1, 2]},
        {"gone": [], "label": 0, "u": None, "kind": "a", "tags": []},
    ]
    values = [write(WRITER, row) for row in rows]
    values += [values[0][:-1], values[1] + b"x"]
    config = one_schema(tmp_path, WRITER, reader)
    assert needs_reference(Decoder(RESOLVED, config), values) == [not is_fast, not is_fast, True, True]
    fast, slow = both_paths(RESOLVED, config)
    found, expected = decode(values, fast), decode(values, slow)
    assert_same_columns(found, expected)
    assert found.dead_letters == expected.dead_letters


def test_a_default_that_is_learned_from_is_left_to_the_library(tmp_path) -> None:
    reader = {**READER, "fields": [*READER["fields"], field("color", "string", default="red")]}
    schema = Schema(labels=("label",), categorical=("color",))
    value = write(WRITER, {"gone": [], "label": 1, "u": None, "kind": "a", "tags": []})
    decoder = Decoder(schema, one_schema(tmp_path, WRITER, reader))
    assert needs_reference(decoder, [value]) == [True]
    assert decode([value], decoder).id_strings.strings == ["red"]


def test_records_are_resolved_to_the_readers_schema(tmp_path) -> None:
    writer = record("Click", field("label", "int"), field("u", "int"), field("gone", "string"))
    reader = record(
        "Click", field("label", "double"), field("user", "long", aliases=["u"]), field("kind", "string", default="view")
    )
    ours = Schema(labels=("label",), categorical=("user", "kind", "gone"))
    decoder = Decoder(ours, one_schema(tmp_path, writer, reader))
    found = decode([write(writer, {"label": 1, "u": 7, "gone": "x"})], decoder)
    assert_same_columns(found, columns_of_json([{"label": 1, "user": 7, "kind": "view"}], ours))


def test_each_message_is_read_by_the_schema_that_its_header_names_which_is_asked_for_once() -> None:
    older = record("Click", field("label", "int"), field("user", "long"))
    newer = record("Click", field("kind", "shop.Kind"), field("label", "double"), field("user", "string"))
    kind = {"type": "enum", "name": "Kind", "namespace": "shop", "symbols": ["a", "b"]}
    ours = Schema(labels=("label",), categorical=("user", "kind"))
    with running_registry() as registry:
        registry.add(1, json.dumps(older))
        registry.subjects["kind/value", 3] = {"schema": json.dumps(kind)}
        reference = {"name": "shop.Kind", "subject": "kind/value", "version": 3}
        registry.add(258, json.dumps(newer), references=[reference])
        decoder = Decoder(ours, DecodeConfig(format="avro", registry_url=registry.url))
        whole = {**newer, "fields": [{"name": "kind", "type": kind}, *newer["fields"][1:]]}
        rows = [{"label": 1, "user": 5}, {"kind": "b", "label": 0.5, "user": "ann"}]
        values = [
            b"\0\0\0\0\1" + write(older, rows[0]),
            b"\0\0\0\1\2" + write(whole, rows[1]),
        ]
        assert_same_columns(decode(values * 2, decoder), columns_of_json(rows * 2, ours))
        asked = ["/schemas/ids/1", "/schemas/ids/258", "/subjects/kind%2Fvalue/versions/3"]
        assert registry.requests == asked
        assert decode(values * 2, decoder).labels_NL.tolist() == [[1], [0.5], [1], [0.5]]
        assert registry.requests == asked


def test_an_id_that_the_registry_does_not_have_is_a_dead_letter() -> None:
    schema = record("Click", field("label", "int"), field("user", "long"))
    ours = Schema(labels=("label",), categorical=("user",))
    with running_registry() as registry:
        registry.add(1, json.dumps(schema))
        registry.add(2, "no schema")
        registry.add(3, "syntax = 'proto3';", "PROTOBUF")
        decoder = Decoder(ours, DecodeConfig(format="avro", registry_url=registry.url))
        body = write(schema, {"label": 1, "user": 5})
        bad = [b"\0\0\0\0" + bytes([schema_id]) + body for schema_id in (2, 3, 4, 4)]
        assert_dead_between_good(b"\0\0\0\0\1" + body, bad, decoder, {"unknown_schema"})
        columns = decode([bad[2], b"\1\0\0\0\1" + body, b"\0\0"], decoder)
        assert [letter.reason for letter in columns.dead_letters] == ["unknown_schema", "bad_avro", "bad_avro"]
        assert "has no /schemas/ids/4" in columns.dead_letters[0].detail
        assert [path for path in registry.requests if path.endswith("/4")] == ["/schemas/ids/4"]


def test_files_that_are_no_schemas_are_refused_in_one_line(tmp_path) -> None:
    path = tmp_path / "a.avsc"
    for text in ["{", '"nothing"', '{"type": "record"}', "[]x"]:
        path.write_text(text)
        with pytest.raises(FormatError, match=r"a\.avsc is no Avro schema: [^\n]*$"):
            Decoder(SCHEMA, DecodeConfig(format="avro", schema_file=path))
    with pytest.raises(FormatError, match=r"b\.avsc cannot be read: No such file"):
        Decoder(SCHEMA, DecodeConfig(format="avro", schema_file=tmp_path / "b.avsc"))


def test_json_is_written_in_the_writers_schema(config) -> None:
    codec = config.open_codec()
    assert codec.encode(json.dumps(GOOD).encode()) == write(CLICK, GOOD)
    assert codec.encode(b'{"click": "no number"}') == b'{"click": "no number"}'
