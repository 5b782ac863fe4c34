"""Parquet's columns are decoded as the JSON messages of their rows are, whatever types they have."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.columns import Columns
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.history.input_file import message_of
from springtide.stream.history.reader import raw_rows
from springtide.stream.history.table_rows import TableRows, open_decoder
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    timestamp="ts",
    weight="weight",
    categorical=("user", "item"),
    multi_value=("genres",),
    sequence=("last",),
    dense=("age",),
)
NOW_MS = 1_700_000_000_000
INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=12) | st.sampled_from(["7", "007", "-3", "9223372036854775808", "1.5", ""])
DATES = st.dates(date(1970, 1, 1), date(2030, 1, 1))
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2023, 11, 1), timezones=st.just(UTC))
IDS = [
    (pa.int64(), INTEGERS),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats() | st.integers(-100, 100).map(float)),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    (pa.bool_(), st.booleans()),
    (pa.date32(), DATES),
    (pa.timestamp("us", "UTC"), MOMENTS),
    (pa.binary(), st.binary(max_size=5)),
    (pa.decimal128(10, 2), st.integers(-999, 999).map(lambda n: Decimal(n) / 4)),
    (pa.null(), st.none()),
]
NUMBERS = [each for each in IDS if not pa.types.is_binary(each[0])]
TIMES = [(pa.int64(), st.integers(NOW_MS - 10**9, NOW_MS) | INTEGERS), (pa.timestamp("us", "UTC"), MOMENTS), IDS[5]]
LABELS = [(pa.int8(), st.integers(0, 2)), (pa.float64(), st.floats(-0.5, 1.5)), (pa.bool_(), st.booleans()), IDS[5]]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    num_rows = draw(st.integers(0, 8))
    columns: dict[str, Any] = {}

    def add(name: str, kinds: list[tuple[Any, Any]], *, is_list: bool = False) -> None:
        if draw(st.integers(0, 9)) == 0:
            return  # no such column
        kind, values = draw(st.sampled_from(kinds))
        values = st.none() | values if draw(st.booleans()) else values
        if is_list:
            kind, values = pa.list_(kind), st.none() | st.lists(values, max_size=4)
        cells = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
        columns[name] = pa.array(cells, kind)

    for name, kinds in {"click": LABELS, "ts": TIMES, "weight": NUMBERS, "age": NUMBERS}.items():
        add(name, kinds)
    for name in ("user", "item", "comment"):
        add(name, IDS)
    for name in ("genres", "last"):
        add(name, [each for each in IDS if not pa.types.is_dictionary(each[0])], is_list=True)
    return pa.table(columns) if columns else pa.table({"click": pa.array([1] * num_rows, pa.int8())})


def content(columns: Columns) -> dict[str, Any]:
    features, strings = columns.features, columns.id_strings
    return {
        "categorical": features.categorical_NC.tolist(),
        "lists": [(ragged.ids_M.tolist(), ragged.offsets.tolist()) for ragged in features.lists],
        "dense": features.dense_NF.tobytes(),
        "labels": columns.labels_NL.tobytes(),
        "weights": columns.weights_N.tobytes(),
        "event_ms": columns.event_ms_N.tolist(),
        "offsets": columns.offset_N.tolist(),
        "ends": columns.end_offsets,
        "strings": sorted(zip(strings.features.tolist(), strings.ids.tolist(), strings.strings, strict=True)),
        "dead_letters": [(each.offset, each.reason, each.value) for each in columns.dead_letters],
    }


@settings(max_examples=100, deadline=None)
@given(table=tables(), first=st.integers(0, 10**9))
def test_a_table_is_decoded_as_the_messages_of_its_rows(table: pa.Table, first: int) -> None:
    found = open_decoder(SCHEMA, DecodeConfig()).decode(TableRows.of(table, first), NOW_MS)
    messages = [message_of(row) for row in table.to_pylist()]
    expected = Decoder(SCHEMA, DecodeConfig()).decode(raw_rows(messages, first), NOW_MS)
    assert content(found) == content(expected)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_are_event_times_in_every_unit(unit: str) -> None:
    moment = pa.array([NOW_MS // 1000]).cast(pa.timestamp("s")).cast(pa.timestamp(unit))
    table = pa.table({"click": pa.array([1], pa.int8()), "ts": moment})
    columns = open_decoder(SCHEMA, DecodeConfig()).decode(TableRows.of(table, 0), NOW_MS)
    assert columns.event_ms_N.tolist() == [NOW_MS]
    assert np.isnan(columns.features.dense_NF).all()
