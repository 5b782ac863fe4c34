"""Labels, weights and event times of records, and the reasons for refusing them."""

import math

import pytest

from springtide_client.errors import EncodeError
from springtide_client.schema import Schema
from springtide_client.targets import SampleTargets, parse_targets

ONE = Schema(labels=("click",), timestamp="ts", weight="w", dense=("age",))
TWO = Schema(labels=("click", "order"), dense=("age",))
NOW_MS = 1_700_000_000_000


def parse(record, schema=ONE, record_ms=NOW_MS):
    return parse_targets(schema, record, record_ms=record_ms, now_ms=NOW_MS, max_future_seconds=60)


@pytest.mark.parametrize("label", [1, 1.0, True, "1", "1.0"])
def test_a_label_is_a_number_a_boolean_or_a_decimal_string(label):
    assert parse({"click": label, "ts": NOW_MS}) == SampleTargets([1.0], 1.0, NOW_MS)


@pytest.mark.parametrize("ts", [NOW_MS, float(NOW_MS), str(NOW_MS), f"{NOW_MS}.0", "1.7e12", NOW_MS + 60_000, 0])
def test_an_event_time_is_integral_milliseconds(ts):
    assert parse({"click": 0, "ts": ts}).event_ms == int(float(ts))


@pytest.mark.parametrize(
    "ts",
    [
        None,
        -1,
        1.5 + NOW_MS,
        "soon",
        [],
        True,
        False,
        NOW_MS // 1000,
        NOW_MS * 1000,
        NOW_MS + 60_001,
        math.inf,
        "9" * 50,
    ],
)
def test_an_invalid_time_is_a_bad_timestamp(ts):
    with pytest.raises(EncodeError) as caught:
        parse({"click": 0, "ts": ts})
    assert caught.value.reason == "bad_timestamp"


def test_an_event_time_is_compared_with_the_records_own_timestamp():
    with pytest.raises(EncodeError):
        parse({"click": 0, "ts": NOW_MS}, record_ms=NOW_MS - 60_001)
    assert parse({"click": 0, "ts": NOW_MS}, record_ms=-1).event_ms == NOW_MS
    with pytest.raises(EncodeError):
        parse({"click": 0, "ts": NOW_MS + 60_001}, record_ms=NOW_MS * 2)


def test_without_a_timestamp_field_the_records_timestamp_is_the_event_time():
    assert parse({"click": 0}, TWO, NOW_MS - 5).event_ms == NOW_MS - 5
    assert parse({"click": 0}, TWO, -1).event_ms == 0
    with pytest.raises(EncodeError):
        parse({"click": 0}, TWO, NOW_MS + 60_001)


def test_one_of_several_labels_may_be_masked():
    labels = parse({"click": None, "order": 0.5}, TWO).labels
    assert math.isnan(labels[0])
    assert labels[1] == 0.5


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "missing_label"),
        ({"click": None}, "missing_label"),
        ({"click": 1.01}, "label_range"),
        ({"click": -0.1}, "label_range"),
        ({"click": math.nan}, "not_finite"),
        ({"click": "yes"}, "wrong_type"),
        ({"click": [1]}, "wrong_type"),
        ({"click": 1, "w": -1}, "wrong_type"),
        ({"click": 1, "w": "heavy"}, "wrong_type"),
        ({"click": 1, "w": 1e300}, "not_finite"),
    ],
)
def test_a_record_that_cannot_be_trained_on_has_a_reason(record, reason):
    with pytest.raises(EncodeError) as caught:
        parse({"ts": NOW_MS, **record})
    assert caught.value.reason == reason
    assert caught.value.field is not None


def test_a_missing_weight_is_one():
    assert parse({"click": 1, "ts": NOW_MS, "w": None}).weight == 1.0
    assert parse({"click": 1, "ts": NOW_MS, "w": 0}).weight == 0.0
