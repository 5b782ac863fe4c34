from springtide.app.training.input.feature_values import FeatureValues, without_values
from springtide_client.encode import encode_instances
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",), categorical=("user", "country"), multi_value=("tags", "words"), dense=("age", "price")
)


def test_features_without_any_value_are_named_until_there_were_enough_samples():
    values = FeatureValues(SCHEMA, enough=3)
    values.add(encode_instances(SCHEMA, []))
    values.add(encode_instances(SCHEMA, [{"user": 1, "words": []}, {"tags": ["a"], "price": 0}]))
    assert values.without == ["country", "words", "age"]
    values.add(encode_instances(SCHEMA, [{"age": 3}, {}]))
    values.add(encode_instances(SCHEMA, [{"country": "is"}]))
    assert (values.num_samples, values.without) == (4, ["country", "words"])


def test_of_several_ranks_only_what_no_rank_has_seen_is_without_a_value():
    assert without_values([["country", "words", "age"], ["words", "age", "user"], ["user", "age"]]) == ["age"]
    assert without_values([["country"]]) == ["country"]
