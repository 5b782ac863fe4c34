"""Protobuf: the columns that JSON gives; every damaged message is a dead letter; types from files and a registry."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.errors import FormatError
from springtide_client.schema import Schema
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
from tests.support.schema_registry import running_registry

NESTED = Schema(
    labels=("click",),
    timestamp="ts",
    categorical=("user.id", "user.home.city", "kind"),
    sequence=("user.last",),
    dense=("user.age",),
)
TYPES = descriptor_pb2.FieldDescriptorProto
SYMBOLS = ("view", "cart", "buy", "seven")


def add_message(where, name: str, fields: str, package: str = ".shop"):
    """Add a message type. A line of `fields`: number, name, type; ? is optional, * repeated."""
    message = where.add(name=name)
    for line in fields.strip().splitlines():
        number, field_name, kind = line.split()
        field = message.field.add(name=field_name, number=int(number))
        field.label = TYPES.LABEL_REPEATED if kind.endswith("*") else TYPES.LABEL_OPTIONAL
        if kind.endswith("?"):
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field_name}")
        kind = kind.rstrip("?*")
        if kind[0].isupper() or "." in kind:
            field.type = TYPES.TYPE_ENUM if kind == "Kind" else TYPES.TYPE_MESSAGE
            field.type_name = f".{kind}" if "." in kind else f"{package}.{kind}"
        else:
            field.type = getattr(TYPES, f"TYPE_{kind.upper()}")
    return message


def click_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="shop/click.proto", package="shop", syntax="proto3")
    kinds = file.enum_type.add(name="Kind")
    for number, symbol in enumerate(SYMBOLS):
        kinds.value.add(name=symbol, number=number if number < 3 else -7)
    add_message(file.message_type, "Home", "1 city string")
    add_message(
        file.message_type,
        "User",
        """
        1 id string?
        2 home Home
        3 last sint64*
        2000 age int32?
        5 words string*
        """,
    )
    click = add_message(
        file.message_type,
        "Click",
        """
        1 order float?
        2 ts int64
        3 weight float?
        4 item sfixed64?
        5 name string?
        16 unknown string?
        7 kind Kind
        8 bought bool?
        9 tags string*
        10 last int64*
        11 price double?
        12 ratio float?
        13 user User
        14 blob bytes
        15 click double
        """,
    )
    add_message(click.nested_type, "Inner", "1 click double\n2 user uint64", ".shop.Click")
    return file


def make_class(file, name: str):
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Click = make_class(click_file(), "shop.Click")
GOOD = {"click": 1, "ts": NOW_MS, "item": 5, "name": "ann", "tags": ["a"], "last": [1, 2], "price": 0.5}
users = st.fixed_dictionaries(
    {
        "id": st.none() | st.text(max_size=5),
        "home": st.none() | st.fixed_dictionaries({"city": st.text(max_size=5)}),
        "last": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        "age": st.none() | st.integers(-(2**31), 2**31 - 1),
    }
)
proto_records = records(kind=st.sampled_from(SYMBOLS), user=st.none() | users)


def write(row, message_class=Click) -> bytes:
    return json_format.ParseDict(row, message_class()).SerializeToString()


def write_set(path, *files) -> None:
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("protobuf") / "click.desc"
    write_set(path, click_file())
    return DecodeConfig(format="protobuf", descriptor_file=path, message="shop.Click", max_message_bytes=5000)


@settings(max_examples=100, deadline=None)
@given(st.lists(proto_records, min_size=1, max_size=6))
def test_random_records_give_the_columns_that_json_gives(config, rows) -> None:
    for schema in (SCHEMA, NESTED):
        expected = columns_of_json(rows, schema)
        for decoder in both_paths(schema, config):
            assert_same_columns(decode([write(row) for row in rows], decoder), expected)


def test_fields_that_are_never_sent_have_their_defaults(config) -> None:
    """A label of 0, the first symbol of an enum, an empty string."""
    schema = Schema(labels=("click",), categorical=("kind", "name", "user.id", "user.home.city"), dense=("price",))
    rows = [
        {"click": 0, "kind": "view", "user": {"home": {}}},
        {"click": 0, "user": {"id": ""}},
        {"click": 1, "name": ""},
    ]
    plain = [
        {"click": 0, "kind": "view", "user": {"home": {"city": ""}}},
        {"click": 0, "kind": "view", "user": {"id": ""}},
        {"click": 1, "kind": "view", "name": ""},
    ]
    for decoder in both_paths(schema, config):
        assert_same_columns(decode([write(row) for row in rows], decoder), columns_of_json(plain, schema))


def test_an_unknown_symbol_is_its_number_and_unknown_fields_are_skipped(config) -> None:
    schema = Schema(labels=("click",), categorical=("kind",), multi_value=("last",))
    # kind 99, last unpacked and packed, an unknown group of another version, an unknown fixed field
    value = bytes(
        [7 << 3, 99, 10 << 3, 5, (10 << 3) | 2, 2, 6, 7, 10 << 3, 8, 0xA3, 6, 8, 1, 0xA4, 6, 0xAD, 6, 1, 2, 3, 4]
    )
    for decoder in both_paths(schema, config):
        found = decode([write({"click": 1}) + value], decoder)
        assert_same_columns(found, columns_of_json([{"click": 1, "kind": 99, "last": [5, 6, 7, 8]}], schema))


def test_of_a_field_that_comes_twice_the_last_counts_and_messages_are_merged(config) -> None:
    schema = Schema(labels=("click",), categorical=("item", "user.id", "user.home.city"), sequence=("user.last",))
    one = {"click": 1, "item": 1, "user": {"id": "a", "last": [1, 2]}}
    other = {"click": 0.5, "item": 2, "user": {"home": {"city": "x"}, "last": [3]}}
    both = {"click": 0.5, "item": 2, "user": {"id": "a", "home": {"city": "x"}, "last": [1, 2, 3]}}
    for decoder in both_paths(schema, config):
        assert_same_columns(decode([write(one) + write(other)], decoder), columns_of_json([both], schema))


def is_click(message: bytes) -> bool:
    try:
        Click().ParseFromString(message)
    except DecodeError:
        return False
    return True


def test_a_thousand_damaged_messages_are_dead_letters(config) -> None:
    good = write({**GOOD, "user": {"id": "é", "home": {"city": "y"}, "last": [1]}})
    for schema in (SCHEMA, NESTED):
        assert_dead_between_good(good, damaged([good], is_click), Decoder(schema, config), {"bad_protobuf"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"click": 2}, "label_range"),
        ({"ts": 5}, "bad_timestamp"),
        ({"price": "NaN"}, "not_finite"),
        ({"unknown": "x" * 5000}, "too_large"),
        ({"weight": -1}, "wrong_type"),
    ],
)
def test_a_refused_message_is_a_dead_letter_with_its_reason(config, changes, reason) -> None:
    assert_dead_between_good(write(GOOD), [write({**GOOD, **changes})], Decoder(SCHEMA, config), {reason})


def test_well_known_types_and_defaults_of_proto2(tmp_path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto2")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers", "struct"))
    sale = add_message(
        file.message_type,
        "Sale",
        """
        1 label int32
        2 ts google.protobuf.Timestamp
        3 long google.protobuf.Duration
        4 name google.protobuf.StringValue
        5 more google.protobuf.Struct
        6 kind string
        7 size int32
        """,
    )
    sale.field[5].default_value = "view"
    path = tmp_path / "sale.desc"
    write_set(path, file)
    schema = Schema(
        labels=("label",),
        timestamp="ts",
        categorical=("name", "kind", "more.a.b"),
        sequence=("more.list",),
        dense=("long", "size"),
    )
    config = DecodeConfig(format="protobuf", descriptor_file=path, message="shop.Sale")
    more = {"a": {"b": "deep"}, "list": [1, "x", None]}
    message = b'{"label": 1, "ts": "2023-11-14T22:13:20.250Z", "long": "1.5s", "name": "", '
    message += b'"more": {"a": {"b": "deep"}, "list": [1, "x", null]}}'
    plain = {"label": 1, "ts": NOW_MS + 250, "long": 1500, "name": "", "more": more, "kind": "view"}
    for decoder in both_paths(schema, config):
        found = decode([config.open_codec().encode(message)], decoder)
        assert_same_columns(found, columns_of_json([plain], schema))


def test_a_decimal_of_schema_registries_is_a_number(tmp_path) -> None:
    decimal = descriptor_pb2.FileDescriptorProto(name="confluent/type/decimal.proto", package="confluent.type")
    decimal.syntax = "proto3"
    add_message(decimal.message_type, "Decimal", "1 value bytes\n2 precision uint32\n3 scale int32")
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    file.dependency.append(decimal.name)
    fields = "1 label int32\n2 price confluent.type.Decimal\n3 item confluent.type.Decimal"
    add_message(file.message_type, "Sale", fields)
    write_set(tmp_path / "sale.desc", decimal, file)
    schema = Schema(labels=("label",), categorical=("item",), dense=("price",))
    config = DecodeConfig(format="protobuf", descriptor_file=tmp_path / "sale.desc", message="shop.Sale")
    message = b'{"label": 1, "price": {"value": "+y4=", "scale": 2}, "item": {"value": "TQ=="}}'
    for decoder in both_paths(schema, config):
        found = decode([config.open_codec().encode(message)], decoder)
        assert_same_columns(found, columns_of_json([{"label": 1, "price": -12.34, "item": 77}], schema))


def test_types_come_from_the_registry_by_the_indexes_in_the_header() -> None:
    schema = Schema(labels=("click",), categorical=("user", "item"), dense=("at",))
    shared = descriptor_pb2.FileDescriptorProto(name="x", package="base", syntax="proto3")
    add_message(shared.message_type, "Item", "1 id string", ".base")
    file = click_file()
    file.name = ""
    file.dependency.extend(["base/item.proto", "google/protobuf/timestamp.proto"])
    add_message(file.message_type, "Sale", "1 click double\n2 item base.Item\n3 at google.protobuf.Timestamp")
    inner = make_class(click_file(), "shop.Click.Inner")
    with running_registry() as registry:
        registry.serialized = {"file": file.SerializeToString(), "shared": shared.SerializeToString()}
        reference = {"name": "base/item.proto", "subject": "item", "version": 1}
        registry.add(9, "file", "PROTOBUF", [reference])
        registry.subjects["item", 1] = {"schema": "shared", "schemaType": "PROTOBUF"}
        config = DecodeConfig(format="protobuf", registry_url=registry.url)
        decoder = Decoder(schema, config)
        body = write({"click": 1, "user": 7}, inner)
        header = b"\0\0\0\0\x09"
        values = [
            header + bytes([4, 4, 0]) + body,  # Click.Inner
            header + b"\0" + b"",  # Home: it has no label
            header + bytes([2, 99]) + body,
            header + bytes([4, 4]),
            b"\0\0\0\0\7\0" + body,
            header + bytes([2, 6, *b"\x09\0\0\0\0\0\0\xf0\x3f", 0x1A, 2, 8, 5]),  # Sale
        ]
        columns = decode(values, decoder)
        reasons = ["missing_label", "bad_protobuf", "bad_protobuf", "unknown_schema"]
        assert [letter.reason for letter in columns.dead_letters] == reasons
        assert columns.offset_N.tolist() == [0, 5]
        assert columns.features.categorical_NC[0].tolist()[0] == 7
        assert columns.features.dense_NF[1].tolist() == [5000.0]
        num_requests = len(registry.requests)
        other = Decoder(schema, DecodeConfig(format="protobuf", registry_url=registry.url, message="shop.Click"))
        assert [letter.reason for letter in decode(values[:1], other).dead_letters] == ["bad_protobuf"]
        decode(values, decoder)
        assert len(registry.requests) == num_requests + 2


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (b"nonsense", "shop.Click", "no descriptor set: make one with protoc"),
        (None, "shop.Clack", "has no message shop.Clack"),
        ("missing import", "shop.Click", "imports base/item.proto, which is not there"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path, content, name, problem) -> None:
    path, file = tmp_path / "a.desc", click_file()
    if content == "missing import":
        file.dependency.append("base/item.proto")
    write_set(path, file)
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(FormatError, match=problem) as caught:
        Decoder(SCHEMA, DecodeConfig(format="protobuf", descriptor_file=path, message=name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "needs either descriptor_file"),
        ({"descriptor_file": "a"}, "descriptor_file needs message"),
        ({"descriptor_file": "a", "message": "b", "schema_file": "c"}, 'schema_file is of format = "avro"'),
    ],
)
def test_settings_that_contradict_the_format_are_refused(options, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        DecodeConfig(format="protobuf", **options)
