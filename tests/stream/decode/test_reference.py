"""The JSON parser gives what the reference gives, for every input: columns, dead letters and id strings."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from springtide.stream.columns import Columns, RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.positions import Partition
from springtide_client.features import IdStrings
from springtide_client.schema import Schema

NOW_MS = 1_700_000_000_000
CLICKS = Partition("clicks", 0)
NAMES = [
    "click",
    "order",
    "ts",
    "w",
    "user",
    "item",
    "genres",
    "last",
    "age",
    "price",
    "é",
    "a name of 20 bytes..",
    "",
    'q"',
    "o",
    "o.user",
    "o.in.age",
    "o.in.an object of 20 bytes..last",
    "o..é",
    "p.user",
    'p.q"',
]


def both(schema: Schema, values, record_ms=None, max_message_bytes=400) -> tuple[Columns, Columns]:
    raw = RawRecords.from_messages(CLICKS, values, record_ms=record_ms)
    fast, slow = (Decoder(schema, DecodeConfig(max_message_bytes=max_message_bytes)) for _ in range(2))
    slow.fast_path = None
    return fast.decode(raw, NOW_MS), slow.decode(raw, NOW_MS)


def same(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes(), (one, other)


def as_tuples(id_strings: IdStrings) -> list[tuple[int, int, str]]:
    assert id_strings.features.dtype == np.uint16
    return sorted(zip(id_strings.features.tolist(), id_strings.ids.tolist(), id_strings.strings, strict=True))


def assert_same(fast: Columns, slow: Columns) -> None:
    assert fast.dead_letters == slow.dead_letters
    assert fast.end_offsets == slow.end_offsets
    for name in ("labels_NL", "weights_N", "event_ms_N", "record_ms_N", "partition_N", "offset_N"):
        same(getattr(fast, name), getattr(slow, name))
    same(fast.features.categorical_NC, slow.features.categorical_NC)
    same(fast.features.dense_NF, slow.features.dense_NF)
    for one, other in zip(fast.features.lists, slow.features.lists, strict=True):
        same(one.ids_M, other.ids_M)
        same(one.offsets, other.offsets)
    assert as_tuples(fast.id_strings) == as_tuples(slow.id_strings)


@st.composite
def schemas(draw):
    names = draw(st.permutations(NAMES))
    labels, names = names[: draw(st.integers(1, 2))], names[2:]
    timestamp = names.pop() if draw(st.booleans()) else None
    weight = names.pop() if draw(st.booleans()) else None
    cuts = sorted(draw(st.lists(st.integers(0, len(names)), min_size=4, max_size=4)))
    kinds = [names[start:end] for start, end in zip([0, *cuts[:3]], cuts, strict=True)]
    if not any(kinds):
        kinds[0] = names[:1]
    categorical, multi_value, sequence, dense = map(tuple, kinds)
    return Schema(
        labels=tuple(labels),
        timestamp=timestamp,
        weight=weight,
        categorical=categorical,
        multi_value=multi_value,
        sequence=sequence,
        dense=dense,
        share={sequence[0]: categorical[0]} if sequence and categorical else {},
        max_length={name: draw(st.integers(1, 3)) for name in (*multi_value, *sequence)},
    )


class Raw(str):
    """A piece of JSON, written verbatim."""


DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
numbers = st.one_of(
    st.sampled_from([0, 1, 0.5, 1.0, True, False, -0.0, NOW_MS, NOW_MS - 5, NOW_MS + 60_000, NOW_MS + 60_001, 2**53]),
    st.sampled_from(
        list(map(Raw, ["-0", "-0.0", "1e2", "1E+2", "100e-2", "0.5e1", "01", "1.", ".5", "+1", "1e", "-"]))
    ),
    st.sampled_from(list(map(Raw, ["3.4028235677973366e38", "3.4028235677973365e38", "1e400", "1e-400", "0e9999"]))),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 315_532_800_000, 315_532_799_999, math.nan]),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(0, 1),
    DIGITS.map(Raw),
)
strings = st.one_of(
    st.text(max_size=12),
    st.text("abc0123456789", min_size=1, max_size=30),
    st.sampled_from(["0", "-0", "-1", "+1", "007", str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1)]),
    st.sampled_from(
        ["", "1e3", ".5", "5.", "nan", "inf", "1_0", " 1", "a\\", 'a"b', "\x7f", "é", "日本語", "😀", "\ud800"]
    ),
    DIGITS,
    numbers.map(str),
)
scalars = st.one_of(st.none(), numbers, strings, st.sampled_from(list(map(Raw, ["nul", "True", "NaN", '"\\ud83d"']))))
lists = st.lists(scalars, max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3), max_leaves=5
)
spaces = st.sampled_from(["", "", "", " ", "\n\t\r ", "\x0b"])


def plausible(schema: Schema, name: str):
    if name in schema.labels:
        return st.sampled_from([0, 1, 0.25, True, "1", None])
    if name == schema.timestamp:
        return st.sampled_from([NOW_MS, NOW_MS - 1, str(NOW_MS), float(NOW_MS)])
    if name in schema.lists:
        return st.lists(st.none() | st.integers(-9, 9) | st.text("ab", max_size=2), max_size=6) | st.none()
    return (
        st.sampled_from([0, 1, 2.5, "3", "0.1", None]) if name in (*schema.dense, schema.weight) else strings | numbers
    )


def dump(value, rng: random.Random) -> str:
    def space() -> str:
        return rng.choice(["", "", "", "", " ", "\n\t"])

    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, list):
        return "[" + space() + ",".join(space() + dump(element, rng) + space() for element in value) + "]"
    if isinstance(value, dict):
        return dump_object(list(value.items()), rng)
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def dump_object(items, rng: random.Random) -> str:
    ascii_names = rng.random() < 0.3
    pieces = [f"{json.dumps(name, ensure_ascii=ascii_names)} :{dump(value, rng)} " for name, value in items]
    return "{" + ",".join(pieces) + "}"


def nested(items, rng: random.Random):
    """Most fields whose names have dots in objects, which sometimes come twice."""
    placed, objects = [], {}
    for name, value in items:
        path = name.split(".")
        if len(path) == 1 or rng.random() < 0.1:
            placed.append((name, value))
            continue
        if path[0] not in objects or rng.random() < 0.03:
            objects[path[0]] = {}
            placed.append((path[0], objects[path[0]]))
        inner = objects[path[0]]
        for part in path[1:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
        if rng.random() < 0.1:
            inner[rng.choice(["x", "user", "in"])] = {"user": [{}]}
    return placed


@st.composite
def messages(draw, schema):
    rng = random.Random(draw(st.integers(0, 2**32)))
    used = [*schema.labels, *schema.features, *schema.dense]
    used += [name for name in (schema.timestamp, schema.weight) if name]
    wild = draw(st.integers(0, 3)) == 0
    items = []
    for name in used:
        if rng.random() < (0.7 if wild else 0.97):
            items.append((name, draw(anything if rng.random() < (0.3 if wild else 0.03) else plausible(schema, name))))
    for _ in range(draw(st.integers(0, 2))):
        items.append(
            (draw(strings | st.sampled_from(NAMES) if wild else st.sampled_from(["x", "other"])), draw(anything))
        )
    if draw(st.booleans()):
        rng.shuffle(items)
    text = draw(spaces) + dump_object(nested(items, rng), rng) + draw(spaces)
    message = bytearray(text.encode("utf-8", "surrogatepass"))
    if draw(st.integers(0, 4)) == 0:
        for _ in range(draw(st.integers(1, 3))):
            at = rng.randrange(len(message)) if message else 0
            kind = rng.randrange(4)
            if kind == 0:
                del message[at : at + rng.randrange(1, 5)]
            elif kind == 1:
                message[at:at] = bytes([rng.choice([*b'{}[]",:\\eE-+.0 9u', rng.randrange(256)])])
            elif message:
                message[min(at, len(message) - 1)] = rng.randrange(256)
    return bytes(message)


@st.composite
def polls(draw):
    schema = draw(schemas())
    values = draw(st.lists(messages(schema), min_size=1, max_size=6))
    if draw(st.integers(0, 5)) == 0:
        values.insert(
            draw(st.integers(0, len(values))), draw(st.sampled_from([None, b"", b"{}", b" ", b"[]", b"\xef\xbb\xbf{}"]))
        )
    clocks = st.sampled_from([0, -1, NOW_MS, NOW_MS - 100_000, NOW_MS + 100_000])
    return schema, values, [draw(clocks) for _ in values]


@settings(max_examples=300, deadline=None)
@given(polls())
def test_any_poll_gives_the_reference_columns_dead_letters_and_strings(poll):
    schema, values, record_ms = poll
    assert_same(*both(schema, values, record_ms))


FIELDS = Schema(
    labels=("l",), categorical=("c",), multi_value=("m",), sequence=("s",), dense=("d",), timestamp="t", weight="w"
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from("lcmsdtwx"), anything)
@example("d", Raw("9007199254740993"))
@example("c", 2**64)
@example("l", Raw("18446744073709551616e0"))
@example("l", Raw("1844674407370955161600"))
@example("c", Raw("9007199254740992.0"))
@example("x", Raw("[" * 200 + "]" * 200))
@example("x", Raw("1" * 400))
@example("x", {"a": [{}, [], {"b": Raw("-")}]})
def test_any_value_of_any_field_gives_the_reference_columns(field, value):
    good = {"l": 1, "c": 2, "m": [3], "s": ["four"], "d": 5.5, "t": NOW_MS, "w": 1}
    message = dump({**good, field: value}, random.Random(0)).encode("utf-8", "surrogatepass")
    listed = dump({**good, "m" if field in "lcm" else "s": [value, 1]}, random.Random(0)).encode(
        "utf-8", "surrogatepass"
    )
    assert_same(*both(FIELDS, [message, listed], max_message_bytes=2000))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_any_changed_bytes_give_the_reference_columns(seed):
    rng = random.Random(seed)
    good = {
        "l": 1,
        "c": "text é",
        "m": [3, "x"],
        "s": ["four\n"],
        "d": 0.1234567890123,
        "t": NOW_MS,
        "x": {"y": [None]},
    }
    values = []
    for _ in range(20):
        message = bytearray(json.dumps(good, ensure_ascii=rng.random() < 0.5).encode())
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(message))
            message[at] = rng.choice([rng.randrange(256), message[rng.randrange(len(message))]])
        values.append(bytes(message))
    assert_same(*both(FIELDS, values))


def test_every_prefix_of_a_record_gives_the_reference_columns():
    message = (
        b'{"l": 1, "c": "\\u00e9\xc3\xa9", "m": [1, "x"], "d": -1.25e-3, "t": 1700000000000, "x": [true, null, {}]} '
    )
    assert_same(*both(FIELDS, [message[:length] for length in range(len(message) + 1)]))


NESTED = Schema(
    labels=("l.click",),
    categorical=("o.c", "o.in.c", "c"),
    multi_value=("o.m",),
    sequence=("p.in.s",),
    dense=("o.in.d",),
    timestamp="p.t",
)
GOOD_NESTED = {
    "c": 1,
    "o": {"c": "text", "x": {"c": 5}, "in": {"d": 0.5, "c": 7}, "m": [1, "x"]},
    "l": {"click": 1},
    "p": {"t": NOW_MS, "in": {"s": ["four"]}},
}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_any_changed_bytes_in_objects_give_the_reference_columns(seed):
    rng = random.Random(seed)
    values = []
    for _ in range(20):
        message = bytearray(json.dumps(GOOD_NESTED).encode())
        for _ in range(rng.randrange(0, 3)):
            at = rng.randrange(len(message))
            message[at] = rng.choice([*b'{}":, ', rng.randrange(256), message[rng.randrange(len(message))]])
        values.append(bytes(message))
    assert_same(*both(NESTED, values))


def test_every_prefix_of_a_record_with_objects_gives_the_reference_columns():
    message = json.dumps(GOOD_NESTED).encode()
    values = [message[:length] for length in range(len(message) + 1)]
    fast, slow = both(NESTED, values)
    assert fast.offset_N.tolist() == [len(message)]
    assert_same(fast, slow)


@pytest.mark.parametrize(
    "message",
    [
        b'{"l.click": 1, "p.t": 0, "o.c": 5, "o": 7}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": 4}, "o": {"c": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": 4, "c": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": 4}, "o.c": 5}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": {"c": 5}}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"in": {}, "c": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"in": null, "c": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"in": [], "c": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"in": {"in": {"c": 6}}, "c": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"\\u0063": 5}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {} }',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": 5}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": 5}}}',
        b'{"l": {"click": 1}, "p": {"t": 0}, "o": {"c": 5,}}',
        b'{"l": {"click": 1}, "p": {}}',
        b'{"l": null, "p": {"t": 0}}',
    ],
)
def test_rare_objects_give_the_reference_columns(message):
    good = json.dumps(GOOD_NESTED).encode()
    assert_same(*both(NESTED, [good, message, good]))


@pytest.mark.parametrize("max_message_bytes", [39, 40, 41])
def test_the_longest_message_gives_the_reference_columns(max_message_bytes):
    message = b'{"l": 1, "t": 1700000000000, "c": "abc"}'
    assert len(message) == 40
    assert_same(*both(FIELDS, [message], max_message_bytes=max_message_bytes))


def test_the_workspace_grows_for_long_lists_and_many_strings():
    records = [
        {"l": 1, "t": NOW_MS, "m": [f"text {n}-{i}" for i in range(2000)], "s": list(range(3000))} for n in range(9)
    ]
    values = [json.dumps(record).encode() for record in records]
    fast, slow = both(FIELDS, values, max_message_bytes=1 << 20)
    assert len(fast) == 9
    assert len(fast.id_strings.strings) == 18_000
    assert_same(fast, slow)
