"""Arrow: the columns that JSON gives, of messages with several rows; every damaged message is a dead letter."""

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.columns import RawRecords
from springtide.stream.decode import arrow
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.errors import FormatError
from springtide_client.schema import Schema
from tests.stream.decode.format_records import (
    CLICKS,
    KINDS,
    NOW_MS,
    SCHEMA,
    assert_dead_between_good,
    assert_same_columns,
    columns_of_json,
    damaged,
    decode,
    records,
)

CONFIG = DecodeConfig(format="arrow", max_message_bytes=20_000)
NESTED = Schema(
    labels=("click",),
    timestamp="ts",
    categorical=("user.id", "user.home.city", "kind"),
    sequence=("user.last",),
    dense=("user.age",),
)
USER = pa.struct(
    {
        "id": pa.string(),
        "home": pa.struct({"city": pa.large_string()}),
        "last": pa.list_(pa.int64()),
        "age": pa.int32(),
    }
)
FIELDS = {
    "click": pa.float64(),
    "order": pa.float32(),
    "ts": pa.int64(),
    "weight": pa.float32(),
    "item": pa.int64(),
    "name": pa.string(),
    "unknown": pa.string(),
    "kind": pa.dictionary(pa.int8(), pa.string()),
    "bought": pa.bool_(),
    "tags": pa.list_(pa.string()),
    "last": pa.large_list(pa.int64()),
    "price": pa.float64(),
    "ratio": pa.float32(),
    "user": USER,
}
PA_SCHEMA = pa.schema(FIELDS)
# the same values in other types
OTHER_SCHEMA = pa.schema(
    FIELDS | {"ts": pa.timestamp("ms", "UTC"), "kind": pa.string_view(), "tags": pa.list_(pa.string_view())}
)
GOOD = {"click": 1, "ts": NOW_MS, "item": 5, "name": "ann", "tags": ["a"], "last": [1, 2], "price": 0.5}
users = st.fixed_dictionaries(
    {
        "id": st.none() | st.text(max_size=5),
        "home": st.none() | st.fixed_dictionaries({"city": st.none() | st.text(max_size=5)}),
        "last": st.none() | st.lists(st.none() | st.integers(-9, 2**40), max_size=4),
        "age": st.none() | st.integers(-(2**31), 2**31 - 1),
    }
)
arrow_records = records(
    kind=st.none() | st.sampled_from(KINDS),
    user=st.none() | users,
    tags=st.none() | st.lists(st.none() | st.text(max_size=3)),
)


def write(rows, schema=PA_SCHEMA, *, num_batches=1, **options) -> bytes:
    table = pa.Table.from_pylist(rows, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=max(1, -(-len(rows) // num_batches)))
    return sink.getvalue().to_pybytes()


def columns_of(messages, schema):
    """The columns that the rows of all messages have as JSON, with the offsets of their messages."""
    columns = columns_of_json([row for rows in messages for row in rows], schema)
    offset_N = np.repeat(np.arange(len(messages)), [len(rows) for rows in messages])
    return columns, offset_N


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(arrow_records, max_size=5), st.sampled_from([PA_SCHEMA, OTHER_SCHEMA]), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_random_records_give_the_columns_that_json_gives(messages) -> None:
    values = [
        write(rows, schema, num_batches=2, compression="zstd" if is_compressed else None)
        for rows, schema, is_compressed in messages
    ]
    for schema in (SCHEMA, NESTED):
        expected, offset_N = columns_of([rows for rows, *_ in messages], schema)
        found = decode(values, Decoder(schema, CONFIG))
        assert found.dead_letters == expected.dead_letters == ()
        assert found.offset_N.tolist() == offset_N.tolist()
        object.__setattr__(found, "offset_N", expected.offset_N)
        assert_same_columns(found, expected)


def without_parser(schema) -> Decoder:
    """A decoder that reads every message by pyarrow."""
    decoder = Decoder(schema, CONFIG)
    decoder.table_parser = None
    return decoder


EVERYTHING = Schema(
    labels=("click",),
    timestamp="ts",
    weight="weight",
    categorical=("item", "name", "kind", "user.id", "user.home.city"),
    multi_value=("tags",),
    sequence=("last", "user.last", "pair"),
    dense=("price", "ratio", "user.age"),
    max_length={"last": 2},
)
EVERY_TYPE = pa.schema(
    FIELDS
    | {"pair": pa.list_(pa.int16(), 2), "blob": pa.binary(), "half": pa.float16(), "day": pa.date32()}
    | {"kinds": pa.list_(pa.dictionary(pa.int16(), pa.string())), "none": pa.null(), "deep": pa.list_(USER)}
)
EVERY_VALUE = {
    **GOOD,
    "weight": 2,
    "kind": "buy",
    "user": {"id": "é", "home": {"city": "Köln"}, "last": [3, None], "age": 5},
    "pair": [1, 2],
    "blob": b"x",
    "ratio": 0.25,
    "kinds": ["a", None],
    "deep": [{"id": "x"}],
}


def test_messages_of_a_layout_that_was_seen_need_no_library(monkeypatch) -> None:
    decoder = Decoder(EVERYTHING, CONFIG)
    rows = [
        [EVERY_VALUE, {**GOOD, "kind": None, "last": None}],
        [EVERY_VALUE] * 70,
        [GOOD | {"user": {}}, EVERY_VALUE, GOOD],
    ]
    messages = [write(each, EVERY_TYPE, num_batches=2) for each in rows]
    decode(messages[:1], decoder)
    monkeypatch.setattr(decoder.codec, "load_table", None)
    found = decode(messages, decoder)
    expected = decode(messages, without_parser(EVERYTHING))
    assert found.offset_N.tolist() == [0] * 2 + [1] * 70 + [2] * 3
    object.__setattr__(found, "id_strings", expected.id_strings)  # those of the first message were emitted before
    assert_same_columns(found, expected)


def test_any_changed_bytes_give_what_pyarrow_gives() -> None:
    rng = random.Random(11)
    good = [write([EVERY_VALUE] * 3, EVERY_TYPE), write([GOOD, EVERY_VALUE], EVERY_TYPE, num_batches=2)]
    values = []
    for _ in range(1000):
        message = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(rng.choice([0, 2 * len(message) // 3]), len(message))  # the last third are values
            message[at] = rng.choice([rng.randrange(256), message[at] ^ 1 << rng.randrange(8), 0, 1, 255])
        values.append(bytes(message))
    found, expected = (
        decode(good + values, Decoder(EVERYTHING, CONFIG)),
        decode(good + values, without_parser(EVERYTHING)),
    )
    assert 30 < len(np.unique(found.offset_N)) < 970
    assert_same_columns(found, expected)
    assert [(each.reason, each.value) for each in found.dead_letters] == [
        (each.reason, each.value) for each in expected.dead_letters
    ]


def test_a_message_whose_names_are_no_text_is_a_dead_letter_or_has_no_such_field() -> None:
    good = write([{**GOOD, "user": {"id": "x"}}])
    bad = good.replace(b"price", b"pr\xffce"), good.replace(b"city", b"c\xffty")
    decoder = Decoder(NESTED, CONFIG)
    columns = decode([bad[0], good, bad[1]], decoder)
    assert columns.offset_N.tolist() == [1, 2]
    assert [letter.reason for letter in columns.dead_letters] == ["bad_arrow"]


def test_a_new_layout_is_learned_between_others_that_stay_known() -> None:
    schema = Schema(labels=("click",), categorical=("item",))
    decoder = Decoder(schema, CONFIG)
    messages = []
    for number in range(40):
        kinds = pa.schema({"click": pa.int8(), "item": pa.int64(), f"other {number % 20}": pa.string()})
        messages.append(write([{"click": 1, "item": number}], kinds, compression="zstd" if number % 7 == 3 else None))
    for _ in range(2):
        assert decode(messages, decoder).features.categorical_NC[:, 0].tolist() == list(range(40))
    assert len(decoder.table_parser.programs) == 16


def is_stream(message: bytes) -> bool:
    source = pa.BufferReader(message)
    try:
        with pa.ipc.open_stream(source) as reader:
            for batch in reader:
                batch.validate(full=True)
    except (pa.ArrowException, OSError):
        return False
    return source.tell() == len(message)


def test_a_thousand_damaged_messages_are_dead_letters() -> None:
    good = write([GOOD])
    bad = damaged([good, write([GOOD] * 3, compression="lz4")], is_stream)
    assert_dead_between_good(good, bad, Decoder(SCHEMA, CONFIG), {"bad_arrow"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"click": 2}, "label_range"),
        ({"click": None}, "missing_label"),
        ({"ts": 5}, "bad_timestamp"),
        ({"ts": None}, "bad_timestamp"),
        ({"price": float("nan")}, "not_finite"),
        ({"price": 1e39}, "not_finite"),
        ({"weight": -1}, "wrong_type"),
    ],
)
def test_a_message_with_a_row_that_cannot_be_learned_is_a_dead_letter_as_a_whole(changes, reason) -> None:
    bad = write([GOOD, {**GOOD, "name": "never emitted", **changes}, GOOD])
    decoder = Decoder(SCHEMA, CONFIG)
    assert_dead_between_good(write([GOOD]), [bad], decoder, {reason})
    columns = decode([bad, write([GOOD, GOOD])], Decoder(SCHEMA, CONFIG))
    assert columns.offset_N.tolist() == [1, 1]
    assert columns.dead_letters[0].detail.startswith("row 1: ")
    assert "never emitted" not in columns.id_strings.strings


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("item", pa.binary(), b"x"),
        ("item", pa.list_(pa.int64()), [1]),
        ("item", pa.float64(), 0.5),
        ("tags", pa.string(), "x"),
        ("tags", pa.list_(pa.float64()), [0.5]),
        ("price", pa.string(), "x"),
        ("ts", pa.string(), "x"),
    ],
)
def test_a_column_of_another_type_makes_dead_letters(name, kind, value) -> None:
    schema = pa.schema(FIELDS | {name: kind})
    bad = write([{**GOOD, name: value}], schema)
    assert_dead_between_good(write([GOOD]), [bad], Decoder(SCHEMA, CONFIG), {"wrong_type", "bad_timestamp"})


def test_columns_of_other_types_give_what_json_gives() -> None:
    moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    kinds = {
        "label": (pa.bool_(), True, 1),
        "ts": (pa.timestamp("ns"), moment.replace(tzinfo=None), NOW_MS),
        "a": (pa.uint64(), 2**64 - 1, 2**64 - 1),
        "b": (pa.float64(), 5.0, 5),
        "c": (pa.decimal128(20, 0), Decimal(77), 77),
        "d": (pa.decimal128(20, 2), Decimal("0.10"), 0.1),
        "e": (pa.string(), "1.5", 1.5),
        "f": (pa.date32(), date(1970, 1, 3), 2 * 86_400_000),
        "g": (pa.time32("s"), time(0, 0, 2), 2000),
        "h": (pa.duration("us"), timedelta(milliseconds=7), 7),
        "i": (pa.list_(pa.float32(), 2), [1.0, 2.0], [1, 2]),
        "j": (pa.list_(pa.timestamp("us")), [datetime(1970, 1, 1, 0, 0, 1)], [1000]),
        "k": (pa.null(), None, None),
    }
    schema = Schema(
        labels=("label",),
        timestamp="ts",
        categorical=("a", "b", "c"),
        multi_value=("i", "j"),
        dense=("d", "e", "f", "g", "h", "k"),
    )
    message = write(
        [{name: value for name, (_, value, _) in kinds.items()}], pa.schema({n: k for n, (k, *_) in kinds.items()})
    )
    expected = columns_of_json([{name: value for name, (_, _, value) in kinds.items()}], schema)
    assert_same_columns(decode([message], Decoder(schema, CONFIG)), expected)


def test_of_a_column_that_comes_twice_the_last_counts() -> None:
    batch = pa.record_batch([pa.array([1.0]), pa.array([5]), pa.array([7])], ["click", "item", "item"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    schema = Schema(labels=("click",), categorical=("item",))
    found = decode([sink.getvalue().to_pybytes()], Decoder(schema, CONFIG))
    assert found.features.categorical_NC.tolist() == [[7]]


def test_a_message_of_more_rows_than_bytes_can_hold_is_a_dead_letter(monkeypatch) -> None:
    monkeypatch.setattr(arrow, "MAX_ROWS", 100)
    many = write([{}] * 101, pa.schema({"x": pa.null()}))
    assert_dead_between_good(write([GOOD]), [many], Decoder(SCHEMA, CONFIG), {"too_large"})


def test_messages_without_rows_move_the_position_only() -> None:
    columns = decode([write([])] * 3, Decoder(SCHEMA, CONFIG))
    assert len(columns) == 0
    assert columns.dead_letters == ()
    assert columns.end_offsets == {CLICKS: 3}
    assert len(Decoder(SCHEMA, CONFIG).decode(RawRecords.from_messages(CLICKS, []), NOW_MS)) == 0


def test_tables_cannot_be_joined() -> None:
    with pytest.raises(FormatError, match="cannot be joined"):
        Decoder(SCHEMA, CONFIG, key=["item"])
