import numpy as np
import pytest

from springtide.app.serving.retrieve.served_items import ItemSet, NumberRange
from springtide.app.serving.retrieve.vector_index import ExactIndex
from springtide.app.version_log.items import ItemColumns, ItemLayout
from springtide_client.log.base import ModelIdentity
from tests.app.training.random_clicks import SCHEMA, make_batch

OPTIONS = {"item": [*SCHEMA.features, *SCHEMA.dense]}
LAYOUT = ItemLayout.of(SCHEMA, ModelIdentity(name="two_tower", options=OPTIONS))


@pytest.fixture(scope="module")
def items() -> ItemSet:
    columns = ItemColumns.of(LAYOUT.encode(make_batch(1, 300, SCHEMA).features))
    vectors_IO = np.ones((len(columns), 1), np.float32)
    return ItemSet(1, 1, LAYOUT, columns, vectors_IO, ExactIndex(vectors_IO))


def expected(items: ItemSet, wanted) -> list[int]:
    """Look at one item after the other."""
    part, features = LAYOUT.part, LAYOUT.decode(items.columns.arrays())
    found = []
    for i in range(len(items)):
        item = features.slice(i, i + 1)
        ids = dict(zip(part.categorical, item.categorical_NC.T.tolist(), strict=True))
        ids |= {name: ragged.ids_M.tolist() for name, ragged in zip(part.lists, item.lists, strict=True)}
        numbers = dict(zip(part.dense, item.dense_NF[0].tolist(), strict=True))
        passes = [
            value.low <= numbers[name] <= value.high
            if isinstance(value, NumberRange)
            else bool({*ids[name]} & {*value})
            for name, value in wanted.items()
        ]
        if all(passes):
            found.append(i)
    return found


@pytest.mark.parametrize("field", SCHEMA.features)
def test_items_with_one_of_some_ids_pass(items, field):
    for wanted in ((), (3,), (9, 1, 5, 5), tuple(range(100_000))):
        assert items.passing({field: wanted}).places_M.tolist() == expected(items, {field: wanted})


@pytest.mark.parametrize("field", SCHEMA.dense)
def test_items_with_a_number_in_a_range_pass(items, field):
    for limits in (NumberRange(-np.inf, np.inf), NumberRange(25, 40), NumberRange(3, 2)):
        assert items.passing({field: limits}).places_M.tolist() == expected(items, {field: limits})


def test_items_pass_that_meet_all_conditions(items):
    wanted = {"genres": (1, 2, 3, 4), SCHEMA.dense[0]: NumberRange(20, 60)}
    found = items.passing(wanted)
    assert found.places_M.tolist() == expected(items, wanted)
    assert 0 < len(found.places_M) < len(items)
    assert items.passing(dict(wanted)) is found
