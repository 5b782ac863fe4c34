"""Instances become ids, lists and numbers; what cannot is refused with its field and reason."""

import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide_client.encode import (
    FLOAT32_OVERFLOW,
    EncodedInstance,
    EncodedValues,
    InstanceEncoder,
    encode_instances,
    parse_number,
)
from springtide_client.errors import EncodeError
from springtide_client.keys import MISSING_ID, encode_id, hash_string
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    categorical=("user", "item"),
    multi_value=("genres",),
    sequence=("last",),
    dense=("age", "price"),
    share={"last": "item"},
    max_length={"genres": 2, "last": 3},
)


def refusal(instance: object) -> EncodeError:
    with pytest.raises(EncodeError) as caught:
        encode_instances(SCHEMA, [{}, instance])  # type: ignore[list-item]
    assert caught.value.index == 1
    return caught.value


def test_an_empty_instance_is_all_missing():
    features = encode_instances(SCHEMA, [{}, {"user": None, "genres": None, "last": [], "age": None}])
    assert (features.categorical_NC == MISSING_ID).all()
    assert [list.ids_M.size for list in features.lists] == [0, 0]
    assert [list.offsets.tolist() for list in features.lists] == [[0, 0, 0], [0, 0, 0]]
    assert np.isnan(features.dense_NF).all()


def test_no_instances_give_arrays_of_the_right_shape():
    features = encode_instances(SCHEMA, [])
    assert features.categorical_NC.shape == (0, 2)
    assert features.categorical_NC.dtype == np.int64
    assert features.dense_NF.shape == (0, 2)
    assert features.dense_NF.dtype == np.float32
    assert [ragged.offsets.tolist() for ragged in features.lists] == [[0], [0]]


def test_a_list_skips_nulls_and_is_cut_at_the_right_end():
    features = encode_instances(SCHEMA, [{"genres": [None, 1, 2, 3], "last": [1, None, 2, 3, 4]}, {"genres": ["5"]}])
    genres, last = features.lists
    assert genres.ids_M.tolist() == [1, 2, 5]
    assert genres.offsets.tolist() == [0, 2, 3]
    assert last.ids_M.tolist() == [2, 3, 4]
    assert last.offsets.tolist() == [0, 3, 3]


def test_numbers_may_be_booleans_and_decimal_strings():
    features = encode_instances(SCHEMA, [{"age": True, "price": "-1.5e1"}, {"age": ".5", "price": "+3."}])
    assert features.dense_NF.tolist() == [[1.0, -15.0], [0.5, 3.0]]


def test_numpy_values_encode_like_python_values():
    plain = {"user": 7, "item": 1.0, "genres": [1, 2], "age": 2.5, "price": 3}
    typed = {
        "user": np.int32(7),
        "item": np.float64(1),
        "genres": np.array([1, 2]),
        "age": np.float32(2.5),
        "price": np.int64(3),
    }
    one, other = encode_instances(SCHEMA, [plain]), encode_instances(SCHEMA, [typed])
    assert (one.categorical_NC == other.categorical_NC).all()
    assert (one.lists[0].ids_M == other.lists[0].ids_M).all()
    assert (one.dense_NF == other.dense_NF).all()


@pytest.mark.parametrize(
    ("instance", "reason", "field"),
    [
        ([], "wrong_type", None),
        ({"user": {}}, "wrong_type", "user"),
        ({"user": 1.5}, "wrong_type", "user"),
        ({"user": math.nan}, "not_finite", "user"),
        ({"genres": "a"}, "wrong_type", "genres"),
        ({"genres": [1, 2, 3, []]}, "wrong_type", "genres"),
        ({"last": {"a": 1}}, "wrong_type", "last"),
        ({"age": []}, "wrong_type", "age"),
        ({"age": ""}, "wrong_type", "age"),
        ({"age": "1_000"}, "wrong_type", "age"),
        ({"age": "0x10"}, "wrong_type", "age"),
        ({"age": "١"}, "wrong_type", "age"),
        ({"age": "NaN"}, "not_finite", "age"),
        ({"age": math.inf}, "not_finite", "age"),
        ({"price": 1e39}, "not_finite", "price"),
        ({"price": 10**400}, "not_finite", "price"),
        ({"price": "1e400"}, "not_finite", "price"),
    ],
)
def test_an_error_names_the_field_that_cannot_be_encoded(instance, reason, field):
    error = refusal(instance)
    assert (error.reason, error.field) == (reason, field)
    assert field is None or str(error).startswith(field)


def test_strings_of_all_hashed_ids_are_returned():
    encoded = InstanceEncoder(SCHEMA).encode({"user": "u", "item": "12", "genres": ["a", "b", "c"], "last": ["x"]})
    assert isinstance(encoded, EncodedInstance)
    assert encoded.categorical == [hash_string(b"u"), 12]
    item = SCHEMA.number("item")
    assert encoded.id_strings == [
        (0, hash_string(b"u"), "u"),
        (2, hash_string(b"a"), "a"),
        (2, hash_string(b"b"), "b"),
        (2, hash_string(b"c"), "c"),
        (item, hash_string(b"x"), "x"),
    ]


def test_shared_values_are_encoded_once():
    encoder, shared = InstanceEncoder(SCHEMA), EncodedValues()
    instance = {"user": "u", "last": ["x", 2]}
    first, second = encoder.encode(instance, shared), encoder.encode(dict(instance), shared)
    assert (first.categorical, first.lists) == (second.categorical, second.lists)
    assert (len(first.id_strings), second.id_strings) == (2, [])


def test_shared_values_that_are_dropped_are_not_mistaken_for_later_ones():
    encoder, shared = InstanceEncoder(SCHEMA), EncodedValues()
    for i in range(100):  # a list freed in between would often give its address to the next
        encoded = encoder.encode({"user": f"user {i}", "genres": [i]}, shared)
        assert encoded.lists[0] == [i]
        assert encoded.categorical[0] == hash_string(f"user {i}".encode())


def test_shared_values_equal_values_encoded_one_by_one():
    genres = ["a", 7]
    instances = [{"user": "u", "genres": genres, "item": i, "last": [str(i)]} for i in range(5)]
    one, other = (encode_instances(SCHEMA, instances, share_values=share) for share in (False, True))
    assert (one.categorical_NC == other.categorical_NC).all()
    for own, shared in zip(one.lists, other.lists, strict=True):
        assert (own.ids_M == shared.ids_M).all()
        assert (own.offsets == shared.offsets).all()


WEIGHTED = Schema(
    labels=("click",),
    multi_value=("tags", "genres"),
    weighted=("tags",),
    max_length={"tags": 3},
    pooling={"tags": "sum"},
)


def tags_of(*values: Any) -> tuple[list[int], list[int], list[float]]:
    (tags, _) = encode_instances(WEIGHTED, [{"tags": value} for value in values]).lists
    assert tags.weights_M.dtype == np.float32
    return tags.offsets.tolist(), tags.ids_M.tolist(), tags.weights_M.tolist()


def test_weights_come_in_an_object_or_in_pairs():
    rock, jazz = (encode_id(text)[0] for text in ("rock", "jazz"))
    expected = [0, 2, 2, 2], [rock, jazz], [np.float32(0.8), np.float32(0.2)]
    assert tags_of({"rock": 0.8, "jazz": "0.2"}, {}, None) == expected
    assert tags_of([["rock", 0.8], None, ("jazz", 0.2), [None, 3]], [], None) == expected
    assert tags_of(np.array([[7, 0.5], [8, 2]])) == ([0, 2], [7, 8], [0.5, 2.0])


def test_weights_of_one_id_add_up_and_are_cut_to_the_limits():
    assert tags_of([[7, 1], ["7", 0.25], [8, 0], [9, -1], [9, 1]]) == ([0, 3], [7, 8, 9], [1.25, 0.0, 0.0])
    assert tags_of([[1, 3e38], [2, -1e9], [3, 999], [3, 999]]) == ([0, 3], [1, 2, 3], [1000.0, -1000.0, 1000.0])
    assert tags_of([[1, 3e38], [1, -3e38], [1, 5]]) == ([0, 1], [1], [5.0])


def test_of_a_weighted_list_the_first_ids_are_kept_whose_weights_are_whole():
    assert tags_of([[1, 1], [2, 1], [3, 1], [4, 1], [1, 1]]) == ([0, 3], [1, 2, 3], [2.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("value", "reason", "says"),
    [
        ("rock", "wrong_type", "expected an object of weights by id, or a list of"),
        (["rock"], "wrong_type", r"an element of a weighted list is \[id, weight\], not rock"),
        ([["rock"]], "wrong_type", r"is \[id, weight\], not"),
        ([["rock", 1, 2]], "wrong_type", r"is \[id, weight\], not"),
        ([["rock", None]], "wrong_type", "the weight of 'rock': NoneType is not a number"),
        ({"rock": "much"}, "wrong_type", "the weight of 'rock'"),
        ({"rock": [1]}, "wrong_type", "the weight of 'rock'"),
        ([[{}, 1]], "wrong_type", "dict"),
        ({"rock": math.nan}, "not_finite", "the weight of 'rock': nan is not a finite"),
        ([[None, math.inf]], "not_finite", "the weight of 'None': inf"),
        ({"rock": 1e39}, "not_finite", "the weight of 'rock'"),
        ({"rock": "Infinity"}, "not_finite", "the weight of 'rock'"),
    ],
)
def test_a_weighted_list_that_is_none_is_refused(value, reason, says):
    with pytest.raises(EncodeError, match=says) as error:
        encode_instances(WEIGHTED, [{"tags": value}])
    assert (error.value.reason, error.value.field) == (reason, "tags")


def test_a_list_without_weights_takes_no_objects_and_no_pairs():
    for value in ({"rock": 1}, [["rock", 1]]):
        with pytest.raises(EncodeError):
            encode_instances(WEIGHTED, [{"genres": value}])


def test_the_first_overflowing_number_is_where_float32_becomes_infinite():
    below = math.nextafter(FLOAT32_OVERFLOW, 0)
    assert math.isfinite(np.float32(below))
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(FLOAT32_OVERFLOW))
    assert parse_number(below) == below
    with pytest.raises(EncodeError):
        parse_number(-FLOAT32_OVERFLOW)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_every_finite_number_survives_as_a_string(number):
    for text in (repr(number), str(Decimal(number)), f"{number:e}"):
        assert struct.pack("f", parse_number(text)) == struct.pack("f", float(text))
