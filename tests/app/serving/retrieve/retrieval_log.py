"""A log that two towers learn in, its versions one by one, and what a server must find at each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from springtide.app.config.load import Config
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.stream.columns import Batch
from springtide_client.encode import encode_instances
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.model.view import KNOWN, View
from tests.app.training.random_clicks import RANDOM_CLICKS, make_batch
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog

TOWERS = """
[table]
device_bytes = "16MiB"
[model]
name = "two_tower"
options = { item = ["item_id", "genres", "price"], hidden = [8], dim = 8, buckets = 64 }
[train]
batch_size = 512
[log]
log_bytes = "1GiB"
"""


def config_of(folder: Path, *changes: Section) -> Config:
    return config_in(folder, RANDOM_CLICKS, TOWERS, *changes)


@dataclass(frozen=True)
class Known:
    """What the samples up to a version said, and the net that had learned them."""

    net: TwoTower
    items: dict[int, dict[str, Any]] = field(default_factory=dict)


class RetrievalLog(LearnedLog):
    """`known` and `views` hold what the oracle needs, by version."""

    def __init__(self, folder: Path) -> None:
        super().__init__(config_of(folder))
        self.path = self.config.log.path
        self.known: dict[int, Known] = {}
        self.views: dict[int, View] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._view = View.open(self.directory.newest_base())
        self.number = self._view.version

    def learn(self, batch_number: int, *, first_item: int = 0, num_items: int = 60, samples: int = 120) -> int:
        """Learn a batch of these items, publish a version, and return its number."""
        batch = make_batch(batch_number, samples, self.config.schema)
        batch.features.categorical_NC[:, 1] = first_item + batch.features.categorical_NC[:, 1] % num_items
        self.state.learn(batch)
        self._note(batch)
        return self.publish()

    def forget_item(self, item: int) -> int:
        """Forget an item, and publish a version."""
        number = self.config.schema.number("item_id")
        self.state.learner.table.forget(np.array([number], np.uint16), np.array([item], np.int64))
        return self.publish()

    def publish(self) -> int:
        """Append a version, and wait until readers see it."""
        head = self.log.append(*self.state.checkpoint(created_ms=1, complete_until_ms=1))
        self.log.sync()
        for record in self.directory.records(self._view.head):
            self._view = self._view.apply(record)
        assert self._view.head == head
        model = self.state.learner.model
        assert isinstance(model, TwoTower)
        net = TwoTower(model.spec, **self.config.model.options).eval()
        net.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        self.known[head.number], self.views[head.number] = Known(net, dict(self._items)), self._view
        self.number = head.number
        return head.number

    def scores(self, number: int, user: Mapping[str, Any]) -> dict[int, float]:
        """Score all items with a row at a version for a user: each pair as a sample with all its features."""
        view, known, schema = self.views[number], self.known[number], self.config.schema
        features = encode_instances(schema, [{**user, **item} for item in known.items.values()])
        rows_KD, status_K = view.rows_for_model(*lookup_keys(schema, features))
        inputs = assemble(schema, features, rows_KD)
        with torch.no_grad():
            users, items = known.net.vectors(*(torch.from_numpy(np.ascontiguousarray(x)) for x in inputs))
        scores = (users.numpy() * items.numpy()).sum(axis=1) / known.net.temperature
        has_row = status_K[: features.categorical_NC.size].reshape(-1, 2)[:, 1] == KNOWN
        return {item: float(scores[n]) for n, item in enumerate(known.items) if has_row[n]}

    def _note(self, batch: Batch) -> None:
        genres, features = batch.features.lists[0], batch.features
        for n, item in enumerate(features.categorical_NC[:, 1].tolist()):
            price = features.dense_NF[n, 1].item()
            self._items[item] = {
                "item_id": item,
                "genres": genres.ids_M[genres.offsets[n] : genres.offsets[n + 1]].tolist(),
                "price": None if np.isnan(price) else price,
            }
