import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.app.serving.http.errors import ApiError
from springtide.app.serving.predict.request import Instances, decode_predict_request, encode_features
from springtide_client.encode import encode_instances
from springtide_client.features import Features
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    categorical=("user_id", "item_id"),
    multi_value=("genres",),
    sequence=("last_items",),
    dense=("age", "price"),
)
IDS = st.integers(0, 9) | st.sampled_from(["a", "b"]) | st.none()
FIELDS = {
    "user_id": IDS,
    "item_id": IDS,
    "genres": st.lists(IDS, max_size=3) | st.none(),
    "last_items": st.lists(IDS, max_size=3),
    "age": st.integers(0, 99) | st.none(),
    "price": st.integers(0, 99),
    "unknown": st.none(),
}
RECORDS = st.fixed_dictionaries({}, optional=FIELDS)


def same(one, other):
    assert np.array_equal(one.categorical_NC, other.categorical_NC)
    assert np.array_equal(one.dense_NF, other.dense_NF, equal_nan=True)
    for ragged, wanted in zip(one.lists, other.lists, strict=True):
        assert np.array_equal(ragged.ids_M, wanted.ids_M)
        assert np.array_equal(ragged.offsets, wanted.offsets)


@given(RECORDS, st.lists(RECORDS, min_size=1, max_size=4))
def test_a_context_is_added_to_every_candidate(context, candidates):
    whole = [{**context, **candidate} for candidate in candidates]
    same(encode_features(SCHEMA, Instances(candidates, context, 0)), encode_instances(SCHEMA, whole))


@given(st.lists(st.lists(RECORDS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_concatenated_features_equal_those_encoded_together(parts):
    joined = Features.concatenate([encode_instances(SCHEMA, part) for part in parts])
    same(joined, encode_instances(SCHEMA, [instance for part in parts for instance in part]))


@pytest.mark.parametrize(
    ("body", "details"),
    [
        ({"context": {"age": "old"}, "candidates": [{}, {}]}, {"field": "age"}),
        ({"context": {"age": "old"}, "candidates": [{"age": 1}, {}]}, {"field": "age", "index": 1}),
        ({"context": {"user_id": 1}, "candidates": [{}, {"age": "x"}]}, {"field": "age", "index": 1}),
        ({"instances": [{}, {"genres": 5}]}, {"field": "genres", "index": 1}),
    ],
)
def test_an_invalid_value_is_reported_by_index_and_field(body, details):
    instances, _ = decode_predict_request(msgspec.json.encode(body), 10)
    with pytest.raises(ApiError) as caught:
        encode_features(SCHEMA, instances)
    assert caught.value.details == details


def test_an_invalid_context_value_that_every_candidate_overrides_is_ignored():
    instances, _ = decode_predict_request(b'{"context": {"age": "old"}, "candidates": [{"age": 3}]}', 10)
    assert encode_features(SCHEMA, instances).dense_NF[0, 0] == 3
