import numpy as np

from springtide.app.version_log.items import NO_ITEMS, ItemColumns, ItemLayout
from springtide.app.version_log.read.replay_state import newest_items
from springtide.kernels.cpu.serving.item_columns import unpack_items, unpack_items_holding_gil
from springtide_client.log.base import ModelIdentity
from springtide_client.model.inputs import lookup_keys
from tests.app.training.random_clicks import SCHEMA, make_batch

OPTIONS = {"item": ["user_id", "item_id", *SCHEMA.lists, "price"]}
LAYOUT = ItemLayout.of(SCHEMA, ModelIdentity(name="two_tower", options=OPTIONS))


def encoded(number: int, samples: int = 30):
    return LAYOUT.encode(make_batch(number, samples, SCHEMA).features)


def same(columns: ItemColumns, expected) -> bool:
    return all(np.array_equal(array, expected[name]) for name, array in columns.arrays().items())


def test_merged_items_are_the_newest_of_each():
    parts = [encoded(number) for number in range(3)]
    first, second, third = (ItemColumns.of(part) for part in parts)
    assert same(first.merged(second).merged(third), newest_items(parts))
    assert same(third.merged(second), newest_items([parts[2], parts[1]]))
    assert same(NO_ITEMS.merged(first), parts[0])
    assert same(first.merged(NO_ITEMS), parts[0])
    assert len(NO_ITEMS.merged(NO_ITEMS)) == 0


def test_items_are_taken_and_found_by_id():
    columns = ItemColumns.of(encoded(1))
    places = np.arange(0, len(columns), 3)
    taken = columns.take(places)
    np.testing.assert_array_equal(taken.ids_I, columns.ids_I[places])
    np.testing.assert_array_equal(columns.find(taken.ids_I), places)
    assert (taken.find(columns.ids_I) >= 0).sum() == len(places)
    assert NO_ITEMS.find(columns.ids_I).tolist() == [-1] * len(columns)


def test_unpacked_items_are_the_keys_of_their_features():
    columns, part = ItemColumns.of(encoded(2)), LAYOUT.part
    places = np.array([len(columns) - 1, 0, 3, 3])
    numbers = np.array([part.number(name) for name in part.features], np.uint16)
    features = LAYOUT.decode(columns.arrays())
    of_each = [features.slice(place, place + 1) for place in places]
    expected = features.concatenate(of_each)
    for unpack in (unpack_items, unpack_items_holding_gil):
        features_K, ids_K, offsets_LM1, words_MF = unpack(
            places,
            columns.ids_I,
            columns.offsets_I1,
            columns.words_W,
            part.categorical.index(LAYOUT.id_field),
            numbers,
            len(part.categorical),
            len(part.dense),
        )
        expected_features_K, expected_ids_K = lookup_keys(part, expected)
        np.testing.assert_array_equal(features_K, expected_features_K)
        np.testing.assert_array_equal(ids_K, expected_ids_K)
        np.testing.assert_array_equal(words_MF.view(np.float64).astype(np.float32), expected.dense_NF)
        for offsets_M1, ragged in zip(offsets_LM1, expected.lists, strict=True):
            np.testing.assert_array_equal(offsets_M1, ragged.offsets)
