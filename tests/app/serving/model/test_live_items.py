import numpy as np

from springtide.app.serving.model.live_items import LiveItems
from springtide.app.version_log.items import ItemLayout, items_to_arrays
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import ModelIdentity
from tests.app.training.random_clicks import SCHEMA, make_batch
from tests.support.writer_log import WriterLog, put

LAYOUT = ItemLayout.of(SCHEMA, ModelIdentity(name="two_tower", options={"item": ["item_id", "price"]}))


def ids(items) -> list[int]:
    return items.ids_I.tolist()


def test_items_are_those_of_a_range_of_versions(tmp_path):
    log, live = WriterLog(tmp_path / "log"), LiveItems()
    batches = [make_batch(number, 6).features for number in range(3)]
    with log.writer() as writer:
        base = log.directory.open_base()
        tips = [writer.append(VersionMeta(), items_to_arrays(LAYOUT.encode(batch))) for batch in batches]
        put(writer, 1)
        writer.sync()
        for record in log.directory.records(base.tip):
            live.add(record)
    numbers = [tip.number for tip in tips]
    of_batch = [np.unique(batch.categorical_NC[:, 1]).tolist() for batch in batches]
    assert ids(live.between(numbers[0], numbers[1])) == of_batch[1]
    assert ids(live.between(0, numbers[2])) == sorted({*of_batch[0], *of_batch[1], *of_batch[2]})
    assert ids(live.at(base, numbers[0])) == of_batch[0]
    assert ids(live.between(numbers[2], 1 << 62)) == []
    live.drop_through(numbers[1])
    assert ids(live.between(0, numbers[2])) == of_batch[2]
