import numpy as np
import pytest

from springtide.app.version_log.items import ItemLayout, items_of, items_to_arrays
from springtide.app.version_log.read.replay_state import newest_items
from springtide_client.features import Features, Ragged
from springtide_client.format.records import VersionMeta
from springtide_client.keys import MISSING_ID
from springtide_client.log.base import ModelIdentity
from springtide_client.schema import Schema
from tests.app.training.random_clicks import make_batch
from tests.support.writer_log import WriterLog, compact, put, row_tensors

SCHEMA = Schema(
    labels=("click",),
    categorical=("user_id", "shop", "item_id"),
    multi_value=("likes", "genres"),
    sequence=("last_items", "images"),
    dense=("age", "price"),
    share={"last_items": "item_id"},
)
MODEL = ModelIdentity(name="two_tower", options={"item": ["item_id", "price", "genres", "images", "shop"]})


def layout(schema=SCHEMA, model=MODEL) -> ItemLayout:
    found = ItemLayout.of(schema, model)
    assert found is not None
    return found


def features_of(batch_number: int, num: int = 50) -> Features:
    features = make_batch(batch_number, num, SCHEMA).features
    draw = np.random.default_rng(batch_number)
    categorical = np.column_stack([features.categorical_NC, draw.integers(-5, 20, num)])
    categorical[:, 1] = draw.integers(0, 9, num)
    categorical[3, 2] = MISSING_ID
    return Features(categorical, features.lists, features.dense_NF)


def plain_items(features: Features) -> dict[int, tuple]:
    """Each item as its last sample has it: shop, genres, images, price."""
    items = {}
    for n, (_, shop, item) in enumerate(features.categorical_NC.tolist()):
        genres, images = (
            lists.ids_M[lists.offsets[n] : lists.offsets[n + 1]].tolist()
            for lists in (features.lists[1], features.lists[3])
        )
        items[item] = (shop, genres, images, features.dense_NF[n, 1].item())
    items.pop(MISSING_ID)
    return items


def decoded(items) -> dict[int, tuple]:
    features = layout().decode(items)
    lists = [
        [ragged.ids_M[start:stop].tolist() for start, stop in zip(ragged.offsets, ragged.offsets[1:], strict=False)]
        for ragged in features.lists
    ]
    ids, shops = features.categorical_NC[:, 1].tolist(), features.categorical_NC[:, 0].tolist()
    assert ids == items["id"].tolist()
    return dict(zip(ids, zip(shops, *lists, features.dense_NF[:, 0].tolist(), strict=True), strict=True))


def same(left: dict[int, tuple], right: dict[int, tuple]) -> bool:
    return repr(sorted(left.items())) == repr(sorted(right.items()))  # NaN is a missing number


def test_items_are_read_as_their_last_sample_had_them():
    features = features_of(1)
    items = layout().encode(features)
    assert same(decoded(items), plain_items(features))
    assert (items["feature"] == SCHEMA.number("item_id")).all()
    assert (np.diff(items["id"]) > 0).all()
    assert items_of(items_to_arrays(items)) == items
    assert items_of({}) is None


def test_the_newest_part_decides():
    parts = [layout().encode(features_of(number)) for number in range(4)]
    expected = {}
    for number in range(4):
        expected |= plain_items(features_of(number))
    assert same(decoded(newest_items(parts)), expected)


def test_no_samples_and_samples_without_an_item_have_no_items():
    features = features_of(1, 10)
    assert items_to_arrays(layout().encode(features.slice(0, 0))) == {}
    assert items_to_arrays(layout().encode(features.slice(3, 4))) == {}


def test_other_models_have_no_items():
    assert ItemLayout.of(SCHEMA, ModelIdentity(name="dlrm")) is None


def test_a_form_says_which_items_another_layout_can_read():
    renamed = ModelIdentity(name="two_tower", options={"item": ["item_id", "price"]})
    assert layout().form == layout().form
    assert layout(model=renamed).form != layout().form


@pytest.mark.parametrize("pending", [1, 100])
def test_a_base_has_the_newest_items_that_have_a_row(tmp_path, monkeypatch, pending):
    monkeypatch.setattr("springtide.app.version_log.read.replay_state.PENDING_ITEMS", pending)
    log = WriterLog(tmp_path / "log")
    item = SCHEMA.number("item_id")

    def items(*ids, price=0.0):
        ids = np.array(ids, np.int64)
        lists = tuple(Ragged(np.zeros(0, np.int64), np.zeros(len(ids) + 1, np.int64)) for _ in SCHEMA.lists)
        dense = np.full((len(ids), 2), price, np.float32)
        return items_to_arrays(layout().encode(Features(np.stack([ids, ids, ids], axis=1), lists, dense)))

    def rows(*ids, last_seen=100):
        return row_tensors({(item, i): (1.0, last_seen) for i in ids}, [])

    with log.writer() as writer:
        writer.append(VersionMeta(), rows(1, 2, 3, 4) | items(1, 2, 3, 4, 9))  # 9 is not admitted
        writer.append(VersionMeta(), rows(2) | items(2, price=7.0))
        writer.append(VersionMeta(), row_tensors({}, [(item, 3)]))
        writer.sync()
        put(writer, 1)
        writer.sync()
        base = compact(log)
        prices = {key: value[-1] for key, value in decoded(base.items).items()}
        assert prices == {1: 0.0, 2: 7.0, 4: 0.0}
        writer.append(VersionMeta(expiry_cutoffs={str(item): 150}), rows(1, last_seen=200) | items(5))
        writer.append(VersionMeta(expiry_cutoffs={str(item): 150}), rows(5, last_seen=200) | items(1, price=3.0))
        writer.sync()
        put(writer, 1, expiry_cutoffs={str(item): 150})
        writer.sync()
        base = compact(log)
        assert {key: value[-1] for key, value in decoded(base.items).items()} == {1: 3.0, 5: 0.0}
