"""Random records, and the columns that they must give in every format: those of JSON, decoded by the reference."""

# N records
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from springtide.stream.columns import Columns, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.positions import Partition
from springtide_client.schema import Schema

NOW_MS = 1_700_000_000_000
CLICKS = Partition("clicks", 0)
SCHEMA = Schema(
    labels=("click", "order"),
    timestamp="ts",
    weight="weight",
    categorical=("item", "name", "kind", "bought"),
    multi_value=("tags",),
    sequence=("last",),
    dense=("price", "ratio"),
    max_length={"tags": 3, "last": 3},
)
KINDS = ("view", "cart", "buy", "7")

text = st.text(max_size=12) | st.sampled_from(["7", "-1", "007", "nan", "日本語", str(2**63 - 1), str(2**63), "x" * 40])
int64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def records(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Records of SCHEMA; all but three fields may be null."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "click": st.sampled_from([0.0, 1.0, 0.25]),
        "order": st.none() | st.sampled_from([0.0, 1.0]),
        "ts": st.integers(NOW_MS - 10**10, NOW_MS),
        "weight": st.none() | st.floats(0, 9, width=32),
        "item": st.none() | int64,
        "name": st.none() | text,
        "kind": st.sampled_from(KINDS),
        "bought": st.none() | st.booleans(),
        "tags": st.lists(text, max_size=5),
        "last": st.lists(int64, max_size=5),
        "price": st.none() | st.floats(-1e6, 1e6),
        "ratio": st.none() | float32,
        "unknown": st.none() | text,
    }
    return st.fixed_dictionaries(fields | more)


def decode(values: Sequence[bytes | None], decoder: Decoder, **options: Any) -> Columns:
    return decoder.decode(RawRecords.from_messages(CLICKS, values, **options), NOW_MS)


def columns_of_json(rows: Sequence[dict[str, Any]], schema: Schema = SCHEMA) -> Columns:
    """The columns of these records as JSON, by the reference."""
    decoder = Decoder(schema, DecodeConfig())
    decoder.fast_path = None
    return decode([json.dumps(row).encode() for row in rows], decoder)


def both_paths(schema: Schema, config: DecodeConfig) -> list[Decoder]:
    """The decoder, and one without its fast path."""
    slow = Decoder(schema, config)
    slow.fast_path = None
    return [Decoder(schema, config), slow]


def assert_same_columns(found: Columns, expected: Columns) -> None:
    """Same rows, bit for bit, and the same strings of ids; dead letters at the same offsets."""
    assert [letter.offset for letter in found.dead_letters] == [letter.offset for letter in expected.dead_letters]
    for name in ("labels_NL", "weights_N", "event_ms_N", "offset_N"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(found.features.categorical_NC, expected.features.categorical_NC)
    np.testing.assert_array_equal(found.features.dense_NF, expected.features.dense_NF)
    for one, other in zip(found.features.lists, expected.features.lists, strict=True):
        assert one.ids_M.tolist() == other.ids_M.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()
    assert set(_strings(found)) == set(_strings(expected))


def _strings(columns: Columns) -> list[tuple[int, int, str]]:
    strings = columns.id_strings
    return list(zip(strings.features.tolist(), strings.ids.tolist(), strings.strings, strict=True))


def damaged(good: Sequence[bytes], accepts: Callable[[bytes], bool], num: int = 1000) -> list[bytes]:
    """Messages with bytes changed, cut off or added, of those that the format's own library refuses."""
    rng = random.Random(7)
    found: list[bytes] = []
    while len(found) < num:
        message = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            kind, at = rng.randrange(4), rng.randrange(len(message) + 1)
            if kind == 0:
                del message[at:]
            elif kind == 1:
                message[at:at] = rng.randbytes(rng.randrange(1, 5))
            elif kind == 2 and at < len(message):
                message[at] = rng.randrange(256)
            else:
                message += rng.randbytes(rng.randrange(1, 5))
        if bytes(message) and not accepts(bytes(message)):
            found.append(bytes(message))
    return found


def assert_dead_between_good(good: bytes, bad: Sequence[bytes], decoder: Decoder, reasons: set[str]) -> None:
    """Each bad message is a dead letter with its bytes and one of the reasons; the good ones between are all there."""
    values = [value for each in bad for value in (good, each)]
    columns = decode(values, decoder)
    assert columns.offset_N.tolist() == list(range(0, len(values), 2))
    assert [letter.offset for letter in columns.dead_letters] == list(range(1, len(values), 2))
    assert [letter.value for letter in columns.dead_letters] == list(bad)
    assert {letter.reason for letter in columns.dead_letters} <= reasons
    assert all(letter.detail for letter in columns.dead_letters)
    assert columns.end_offsets == {CLICKS: len(values)}
