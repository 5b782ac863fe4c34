import pytest

from springtide.app.models.interface import FieldSpec, ModelSpec
from springtide_client.schema import Schema
from tests.support.model_specs import spec_of_sizes

SCHEMA = Schema(
    labels=("click", "order"),
    categorical=("user", "item"),
    multi_value=("tags",),
    sequence=("last_items",),
    dense=("price",),
    share={"last_items": "item"},
    max_length={"last_items": 7},
)


def test_a_model_sees_what_features_are_called_and_whose_rows_they_use():
    spec = ModelSpec.of(SCHEMA, 8, {SCHEMA.number("item"): 4})
    assert spec.categorical == (
        FieldSpec(name="user", dim=8, owner="user"),
        FieldSpec(name="item", dim=4, owner="item"),
    )
    assert spec.multi_value == (FieldSpec(name="tags", dim=8, owner="tags", max_length=50),)
    assert spec.sequence == (FieldSpec(name="last_items", dim=4, owner="item", max_length=7),)
    assert (spec.dense, spec.labels, spec.dim) == (("price",), ("click", "order"), 8)
    assert [field.name for field in spec.fields] == ["user", "item", "tags", "last_items"]
    sizes = (spec.num_categorical, spec.num_pooled, spec.num_sequence, spec.num_dense, spec.num_labels, spec.num_fields)
    assert sizes == (2, 1, 1, 1, 2, 4)


def test_features_are_found_by_name():
    spec = ModelSpec.of(SCHEMA, 8)
    assert spec.categorical_index("item") == 1
    assert (spec.multi_value_index("tags"), spec.sequence_index("last_items"), spec.dense_index("price")) == (0, 0, 0)
    assert spec.label_index("order") == 1
    with pytest.raises(ValueError, match="no categorical feature 'last_items': it has user, item"):
        spec.categorical_index("last_items")
    with pytest.raises(ValueError, match="no sequence 'x': it has none"):
        spec_of_sizes(1).sequence_index("x")
    with pytest.raises(ValueError, match="no label 'buy': it has click, order"):
        spec.label_index("buy")
