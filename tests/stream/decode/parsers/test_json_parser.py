import json

import numpy as np
import pytest

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder, compile_parsers
from springtide.stream.decode.parsers.field_table import build_field_table, build_hash_table
from springtide.stream.decode.parsers.seen_set import SeenSet
from springtide.stream.decode.rows import DecodedRows
from springtide.stream.positions import Partition
from springtide_client.keys import hash_string
from springtide_client.schema import Schema

NOW_MS = 1_700_000_000_000
SCHEMA = Schema(labels=("l",), categorical=("c",), multi_value=("m",), sequence=("s",), dense=("d",), timestamp="t")
GOOD = {"l": 1, "c": "text", "m": [3, "x"], "s": ["four"], "d": 5.5, "t": NOW_MS}


def needs_reference(message: bytes) -> bool:
    raw = RawRecords.from_messages(Partition("clicks", 0), [message])
    (is_unparsed,) = Decoder(SCHEMA).fast_path.parse(raw, DecodedRows(SCHEMA, 1), NOW_MS)[0].tolist()
    return is_unparsed


@pytest.mark.parametrize(
    "change",
    [
        {"c": None},
        {"c": 12, "d": None, "m": None, "s": []},
        {"c": "日本語", "m": ['\n"\\é', "😀"]},
        {"c": 3.0, "d": "1.5", "l": True, "t": str(NOW_MS)},
        {"d": 0.12345678901234567, "l": 0.3},
        {"x": {"deep": [1.5, None, True, {"a": "\\u0041"}, [], {}]}, "y": -1e30},
        {"s": list(range(200))},
    ],
)
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_common_records_do_not_need_the_reference_decoder(change, ensure_ascii):
    assert not needs_reference(json.dumps({**GOOD, **change}, ensure_ascii=ensure_ascii).encode())
    assert not needs_reference(json.dumps({**change, **GOOD}, indent=2, ensure_ascii=ensure_ascii).encode())


@pytest.mark.parametrize(
    "message",
    [
        {"l": 1, "user": {"id": "ann", "home": {"city": 5, "x": {}}, "x": [{"id": 3}]}, "price": 2},
        {"l": 1, "user": {}, "user.home.city": 7},
        {"user.id": "whole name", "l": 1, "user": None},
        {"user": {"home": {}, "id": 1}, "l": 1},
    ],
)
def test_fields_inside_of_objects_do_not_need_the_reference_decoder(message):
    schema = Schema(labels=("l",), categorical=("user.id", "user.home.city"), dense=("price",))
    for indent in (None, 2):
        value = json.dumps(message, indent=indent).encode()
        raw = RawRecords.from_messages(Partition("clicks", 0), [value, value])
        unparsed_N, _ = Decoder(schema).fast_path.parse(raw, DecodedRows(schema, 2), NOW_MS)
        assert unparsed_N.tolist() == [False, False]


def test_a_key_that_a_field_lies_in_leaves_all_to_the_reference_decoder():
    schema = Schema(labels=("l",), categorical=("user.id",))
    assert Decoder(schema, key=("user",)).fast_path is None
    assert Decoder(schema, key=("user.home",)).fast_path is not None


def test_fields_may_be_absent():
    assert not needs_reference(b'{"t":0,"l":0}')


@pytest.mark.parametrize("colon", [":", " :", ": ", "\n:\t"])
def test_names_of_any_length_are_found_however_their_colon_is_spaced(colon):
    """Records after the first one are expected to have its fields in its order; the last ends the buffer."""
    names = tuple("abcdefghij"[: length % 10 + 1] * (length // 10 + 1) for length in range(40))
    schema = Schema(labels=("l",), dense=names)
    members = [f'"{name}"{colon}{number}' for number, name in enumerate(names)]
    swapped = [*members[1::2], *members[::2]]
    cut = [member.replace('"', '"x', 1) for member in members[:20]] + members[20:]
    values = [f'{{"l"{colon}1,{",".join(order)}}}'.encode() for order in (members, members, swapped, cut, members)]
    columns = Decoder(schema).decode(RawRecords.from_messages(Partition("clicks", 0), values), NOW_MS)
    expected_F = np.arange(40, dtype=np.float32)
    for record in (0, 1, 2, 4):
        np.testing.assert_array_equal(columns.features.dense_NF[record], expected_F)
    np.testing.assert_array_equal(columns.features.dense_NF[3, 20:], expected_F[20:])
    assert np.isnan(columns.features.dense_NF[3, :20]).all()


@pytest.mark.parametrize("change", [{"c": 2**70}, {"l": 2}, {"t": 5}, {"d": "x"}, {"c": [1]}, {"m": "x"}, {"d": 1e39}])
def test_rare_records_are_left_to_the_reference_decoder(change):
    assert needs_reference(json.dumps({**GOOD, **change}).encode())


def test_strings_of_a_record_left_to_the_reference_do_not_count_as_emitted():
    decoder = Decoder(SCHEMA)
    bad = json.dumps({**GOOD, "t": 5}).encode()
    good = json.dumps(GOOD).encode()
    id_strings = decoder.decode(RawRecords.from_messages(Partition("clicks", 0), [bad, good]), NOW_MS).id_strings
    assert sorted(id_strings.strings) == ["four", "text", "x"]


def test_strings_are_emitted_again_after_the_seen_set_was_cleared():
    decoder = Decoder(SCHEMA, seen_strings=SeenSet(64))
    for start in range(0, 1000, 10):
        values = [json.dumps({**GOOD, "c": f"c{start + i}", "m": [], "s": []}).encode() for i in range(10)]
        columns = decoder.decode(RawRecords.from_messages(Partition("clicks", 0), values), NOW_MS)
        assert columns.id_strings.strings == [f"c{start + i}" for i in range(10)]
        assert decoder.seen_strings.num_keys[0] <= len(decoder.seen_strings.slots) // 2
    values = [json.dumps({**GOOD, "c": "c0", "m": [], "s": []}).encode()]
    columns = decoder.decode(RawRecords.from_messages(Partition("clicks", 0), values), NOW_MS)
    assert columns.id_strings.ids.tolist() == [hash_string(b"c0")]


def test_field_names_that_need_escapes_are_left_to_the_reference_decoder():
    schema = Schema(labels=("l",), categorical=('a"b', "a\\b", "plain"))
    assert sorted(
        number for number in build_hash_table([b'a"b', b"a\\b", b"plain"], [0, 0, 0]).tolist() if number >= 0
    ) == [2]
    message = json.dumps({"l": 1, 'a"b': 4, "a\\b": 5, "plain": 6}).encode()
    columns = Decoder(schema).decode(RawRecords.from_messages(Partition("clicks", 0), [message]), NOW_MS)
    assert columns.features.categorical_NC.tolist() == [[4, 5, 6]]


def test_a_field_table_finds_each_of_many_similar_names():
    names = tuple(f"a rather long common beginning {i:03d} and a common end" for i in range(300))
    schema = Schema(labels=("l",), dense=names)
    assert len(build_field_table(schema).buckets_H) >= 4 * 301
    record = {"l": 1, **{name: i for i, name in enumerate(names)}}
    for order in (list(record), list(reversed(record))):
        message = json.dumps({name: record[name] for name in order}).encode()
        columns = Decoder(schema).decode(RawRecords.from_messages(Partition("clicks", 0), [message]), NOW_MS)
        assert columns.features.dense_NF[0].tolist() == list(map(float, range(300)))


def test_columns_do_not_share_memory_with_the_workspace():
    decoder = Decoder(SCHEMA)
    first = decoder.decode(RawRecords.from_messages(Partition("clicks", 0), [json.dumps(GOOD).encode()]), NOW_MS)
    before = [ragged.ids_M.copy() for ragged in first.features.lists]
    other = json.dumps({**GOOD, "m": [8, 9], "s": [10]}).encode()
    decoder.decode(RawRecords.from_messages(Partition("clicks", 0), [other]), NOW_MS)
    for ragged, ids_M in zip(first.features.lists, before, strict=True):
        np.testing.assert_array_equal(ragged.ids_M, ids_M)


def test_compile_parsers_compiles_the_types_of_a_fetch():
    from springtide.stream.decode.parsers.json_parser import parse_kernel

    compile_parsers()
    num_signatures = len(parse_kernel(False).signatures)
    compiled_for = RawRecords.from_messages(Partition("clicks", 0), [json.dumps(GOOD).encode()])
    fetched = np.empty((6, 5), np.int64)
    fetched[:, 0] = [compiled_for.value_start_N[0], compiled_for.value_length_N[0], 0, -1, NOW_MS, 0]
    start, length, key_start, key_length, record_ms, offset = fetched[:, :1]
    raw = RawRecords(
        Partition("clicks", 0), compiled_for.buffer, start, length, key_start, key_length, record_ms, offset, 1
    )
    assert len(Decoder(SCHEMA).decode(raw, NOW_MS)) == 1
    assert len(parse_kernel(False).signatures) == num_signatures == 1


def test_a_label_that_is_a_value_may_be_any_number_and_a_negative_one_is_left_to_the_reference():
    schema = Schema(labels=("l", "v"), categorical=("c",), timestamp="t", links={"v": "identity"})
    messages = [json.dumps({"l": 0, "v": value, "t": 0}).encode() for value in (345.5, None, -2, 1)]
    rows = DecodedRows(schema, len(messages))
    raw = RawRecords.from_messages(Partition("clicks", 0), messages)
    unparsed_N, *_ = Decoder(schema).fast_path.parse(raw, rows, NOW_MS)
    assert unparsed_N.tolist() == [False, False, True, False]
    np.testing.assert_array_equal(rows.labels_NL[[0, 1, 3], 1], np.float32([345.5, np.nan, 1]))
