from types import SimpleNamespace

import numpy as np

from springtide.app.serving.model.recent_records import LiveIdDictionary, LiveItems
from springtide.app.version_log.items import ItemLayout, items_to_arrays
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_string
from springtide_client.log.base import ModelIdentity
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.support.writer_log import WriterLog, put

FEATURE = 3


def columns(*strings: str) -> dict[str, np.ndarray]:
    """The strings of one feature, sorted by id, as a base and a record hold them."""
    texts = sorted((string.encode() for string in strings), key=hash_string)
    return {
        "feature": np.full(len(texts), FEATURE, np.uint16),
        "id": np.array([hash_string(text) for text in texts], np.int64),
        "offsets": np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64),
        "bytes": np.frombuffer(b"".join(texts), np.uint8),
    }


def base(*strings: str) -> SimpleNamespace:
    return SimpleNamespace(id_strings=columns(*strings) if strings else None)


def record(number: int, *strings: str) -> SimpleNamespace:
    tensors = {f"texts.{name}": column for name, column in columns(*strings).items()} if strings else {}
    return SimpleNamespace(number=number, tensors=lambda: tensors)


def ids(*strings: str) -> np.ndarray:
    return np.array([hash_string(string.encode()) for string in strings], np.int64)


def test_strings_are_found_in_the_base_and_in_later_records():
    dictionary = LiveIdDictionary()
    assert not dictionary.has_strings(base(), FEATURE)
    assert dictionary.has_strings(base("hat"), FEATURE)
    dictionary.add(record(5))
    dictionary.add(record(6, "shoe", "boot"))
    assert dictionary.has_strings(base(), FEATURE)
    assert not dictionary.has_strings(base("hat"), FEATURE + 1)
    asked = np.concatenate([ids("boot", "hat", "sock"), [7]])
    assert dictionary.find(base("hat"), FEATURE, asked) == ["boot", "hat", None, None]
    assert dictionary.find(base(), FEATURE, asked) == ["boot", None, None, None]
    assert dictionary.find(base("hat"), FEATURE + 1, asked) == [None] * 4


def test_strings_that_a_base_has_are_dropped():
    dictionary = LiveIdDictionary()
    dictionary.add(record(6, "shoe"))
    dictionary.add(record(7, "boot"))
    dictionary.drop_through(6)
    assert dictionary.find(base(), FEATURE, ids("shoe", "boot")) == [None, "boot"]
    assert dictionary.find(base("shoe"), FEATURE, ids("shoe", "boot")) == ["shoe", "boot"]


LAYOUT = ItemLayout.of(SCHEMA, ModelIdentity(name="two_tower", options={"item": ["item_id", "price"]}))


def item_ids(items) -> list[int]:
    return items.ids_I.tolist()


def test_items_are_those_of_a_range_of_versions(tmp_path):
    log, live = WriterLog(tmp_path / "log"), LiveItems()
    batches = [make_batch(number, 6).features for number in range(3)]
    with log.writer() as writer:
        base = log.directory.open_base()
        heads = [writer.append(VersionMeta(), items_to_arrays(LAYOUT.encode(batch))) for batch in batches]
        put(writer, 1)
        writer.sync()
        for record in log.directory.records(base.head):
            live.add(record)
    numbers = [head.number for head in heads]
    of_batch = [np.unique(batch.categorical_NC[:, 1]).tolist() for batch in batches]
    assert item_ids(live.between(numbers[0], numbers[1])) == of_batch[1]
    assert item_ids(live.between(0, numbers[2])) == sorted({*of_batch[0], *of_batch[1], *of_batch[2]})
    assert item_ids(live.at(base, numbers[0])) == of_batch[0]
    assert item_ids(live.between(numbers[2], 1 << 62)) == []
    live.drop_through(numbers[1])
    assert item_ids(live.between(0, numbers[2])) == of_batch[2]
