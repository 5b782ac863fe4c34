"""The sender's rate of negatives, and the ids by which they are kept, in every format of messages."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from springtide.stream.columns import Columns, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.history.table_rows import TableRows, open_decoder
from springtide.stream.positions import Partition
from springtide_client.keys import MISSING_ID, encode_id
from springtide_client.schema import Schema

SCHEMA = Schema(labels=("click",), categorical=("item",), dense=("age",))
SETTINGS: dict[str, Any] = {"sample_by": ("request", "item"), "rate_field": "kept"}
NOW_MS = 1_700_000_000_000
ROWS = [{"item": n, "request": f"r{n}", "age": float(n), "click": n % 2, "kept": 0.5} for n in range(6)]
BAD = [("kept", 0.0), ("kept", 1.5), ("kept", None), ("request", None)]


def decode(decoder: Decoder, messages: list[bytes]) -> Columns:
    return decoder.decode(RawRecords.from_messages(Partition("clicks", 0), messages), NOW_MS)


def with_bad(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows[0], *({**rows[1], name: value} for name, value in BAD), *rows[1:]]


def from_json(rows: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS, *, is_slow: bool = False) -> Columns:
    decoder = Decoder(SCHEMA, DecodeConfig(**settings))
    if is_slow:
        decoder.fast_path = None
    return decode(decoder, [json.dumps(row).encode() for row in rows])


def from_messagepack(rows: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS) -> Columns:
    config = DecodeConfig(format="msgpack", **settings)
    return decode(Decoder(SCHEMA, config), [config.open_codec().from_json(json.dumps(row).encode()) for row in rows])


def from_arrow(rows: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS) -> Columns:
    messages = []
    for row in rows:
        table, sink = pa.Table.from_pylist([row]), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        messages.append(sink.getvalue())
    return decode(Decoder(SCHEMA, DecodeConfig(format="arrow", **settings)), messages)


def from_parquet(rows: list[dict[str, Any]], settings: dict[str, Any] = SETTINGS) -> Columns:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    table = pq.read_table(io.BytesIO(sink.getvalue()))
    return open_decoder(SCHEMA, DecodeConfig(**settings)).decode(TableRows.of(table, 0), NOW_MS)


@pytest.mark.parametrize("read", [from_json, from_messagepack, from_arrow, from_parquet])
def test_every_format_gives_the_same_and_bad_ones_are_dead_letters(read):
    expected, columns = from_json(ROWS, is_slow=True), read(with_bad(ROWS))
    assert [letter.reason for letter in columns.dead_letters] == ["bad_rate", "bad_rate", "bad_rate", "no_key"]
    assert [letter.offset for letter in columns.dead_letters] == [1, 2, 3, 4]
    assert columns.offset_N.tolist() == [0, 5, 6, 7, 8, 9]
    np.testing.assert_array_equal(columns.features.dense_NF, expected.features.dense_NF)
    np.testing.assert_array_equal(columns.features.categorical_NC, expected.features.categorical_NC)
    assert columns.sampled.rates_N.tolist() == [0.5] * 6
    assert columns.sampled.hash_N.tolist() == expected.sampled.hash_N.tolist()
    assert len(set(columns.sampled.hash_N.tolist())) == 6


def test_a_dead_letter_says_what_is_wrong():
    zero, _, missing, no_key = from_json(with_bad(ROWS)).dead_letters
    assert zero.detail == "kept: the rate of negatives is above 0 and at most 1, not 0"
    assert missing.detail == "kept: the rate of negatives is above 0 and at most 1, not missing"
    assert no_key.detail == "a field of [negatives] by is null or missing"
    assert json.loads(zero.value)["kept"] == 0


def test_one_bad_row_of_an_arrow_message_makes_all_of_it_a_dead_letter():
    table, sink = pa.Table.from_pylist([ROWS[0], {**ROWS[1], "kept": 2.0}, ROWS[2]]), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    columns = decode(Decoder(SCHEMA, DecodeConfig(format="arrow", **SETTINGS)), [sink.getvalue()])
    assert len(columns) == 0
    (letter,) = columns.dead_letters
    assert letter.detail == "row 1: kept: the rate of negatives is above 0 and at most 1, not 2"


def test_features_keep_their_numbers_beside_a_rate():
    schema = Schema(
        labels=("click",), categorical=("item",), dense=("age",), numbers={"item": 4, "age": 7}, next_number=9
    )
    decoder = Decoder(schema, DecodeConfig(**SETTINGS))
    columns = decode(decoder, [json.dumps({**ROWS[0], "item": "a"}).encode()])
    assert columns.id_strings.features.tolist() == [4]
    assert columns.features.dense_NF.shape == (1, 1)


GROUPED: dict[str, Any] = {"request_field": "request", "group_field": "user", "check_field": "signals"}
SIGNALS = [-(2**63), 2**63 - 1, 0, 2**53 + 1, -5, 7]
SHOWN = [
    {"item": n, "request": f"r{n // 2}", "user": n % 3 or None, "signals": str(SIGNALS[n]), "age": 1.0, "click": 0}
    for n in range(6)
]


@pytest.mark.parametrize("read", [from_json, from_messagepack, from_arrow, from_parquet])
def test_every_format_gives_the_ids_by_which_scores_are_grouped(read):
    rows = [SHOWN[0], {**SHOWN[1], "click": 7}, *SHOWN[1:]]  # a dead letter among them
    columns = read(rows, GROUPED)
    assert [letter.offset for letter in columns.dead_letters] == [1]
    assert columns.request_N.tolist() == [encode_id(row["request"])[0] for row in SHOWN]
    assert columns.group_N.tolist() == [row["user"] or MISSING_ID for row in SHOWN]
    assert columns.id_strings.strings == []  # they are no features
    assert columns.signals_N.tolist() == SIGNALS  # as text, but exactly those numbers
    part = columns.take(np.array([4, 2]))
    assert part.signals_N.tolist() == [-5, 0]
    assert part.group_N.tolist() == [1, 2]
    joined = Columns.concatenate([columns.slice(0, 2), columns.slice(2, 6), Columns.empty(SCHEMA)])
    assert joined.request_N.tolist() == columns.request_N.tolist()
    assert joined.signals_N.tolist() == SIGNALS


def test_a_request_may_be_a_feature_too():
    columns = from_json(SHOWN, {"request_field": "item"})
    assert columns.request_N.tolist() == list(range(6))
    assert columns.group_N is None


@pytest.mark.parametrize("read", [from_json, from_messagepack, from_arrow, from_parquet])
def test_numbers_that_are_no_features_are_columns_of_their_own(read):
    rows = [{**row, "p": 0.25 * n if n != 2 else None, "q": float(n)} for n, row in enumerate(ROWS)]
    columns = read(rows, SETTINGS | {"number_fields": ("p", "q")})
    np.testing.assert_array_equal(columns.numbers_NK[:, 0], np.array([0, 0.25, np.nan, 0.75, 1, 1.25], np.float32))
    assert columns.numbers_NK[:, 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert columns.features.dense_NF.tolist() == [[float(n)] for n in range(6)]
    assert columns.sampled.rates_N.tolist() == [0.5] * 6
    assert columns.take(np.array([3])).slice(0, 1).numbers_NK.tolist() == [[0.75, 3.0]]
