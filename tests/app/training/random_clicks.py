"""Random clicks for tests of learning: a schema with every kind of feature, and batches from a seed."""

import numpy as np

from springtide.stream.columns import Batch, DeadLetter
from springtide.stream.positions import Partition
from springtide_client.features import Features, IdStrings, Ragged
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    timestamp="ts",
    weight="w",
    categorical=("user_id", "item_id"),
    multi_value=("genres",),
    sequence=("last_items",),
    dense=("age", "price"),
    share={"last_items": "item_id"},
)
# the settings of such a stream, as a layer of tests.support.config
RANDOM_CLICKS = {
    "name": "test",
    "schema": {
        "label": "click",
        "timestamp": "ts",
        "weight": "w",
        "categorical": ["user_id", "item_id"],
        "multi_value": ["genres"],
        "sequence": ["last_items"],
        "dense": ["age", "price"],
        "share": {"last_items": "item_id"},
    },
    "train": {"batch_size": 32},
}
PARTITION = Partition("clicks", 0)


def make_batch(number: int, samples: int = 32, schema: Schema = SCHEMA) -> Batch:
    """The batch of this number in a stream: users decide, some lists are empty, some numbers missing."""
    random = np.random.default_rng(number)
    users, items = random.integers(0, 40, samples), random.integers(0, 2000, samples)
    lengths = random.integers(0, 4, (len(schema.lists), samples))
    lists = []
    for name, lengths_N in zip(schema.lists, lengths, strict=True):
        offsets = np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)
        ids_M, weights_M = random.integers(0, 30, offsets[-1]).astype(np.int64), None
        if name in schema.weighted:
            own = np.random.default_rng(number)
            ids_M = (ids_M[:1].sum() + np.arange(offsets[-1])) % 30  # no id twice in a list
            weights_M = own.choice(np.array([0.8, 0.2, -0.5, 0, 2], np.float32), offsets[-1])
        lists.append(Ragged(ids_M, offsets, weights_M))
    dense = random.normal(30, 10, (samples, len(schema.dense))).astype(np.float32)
    dense[random.random(dense.shape) < 0.2] = np.nan
    chance = 1 / (1 + np.exp(-(users % 5 - 2.0)))
    start = number * samples
    event_ms = (1_600_000_000_000 + start + np.arange(samples)).astype(np.int64)
    dead = DeadLetter(PARTITION, start, "bad_json", "", None, b"{", 0)
    text = IdStrings(np.array([0], np.uint16), np.array([number], np.int64), [f"text {number}"])
    return Batch(
        features=Features(
            np.stack([users, items], axis=1).astype(np.int64)[:, : len(schema.categorical)], tuple(lists), dense
        ),
        labels_NL=(random.random((samples, len(schema.labels))) < chance[:, None]).astype(np.float32),
        weights_N=random.exponential(1, samples).astype(np.float32),
        event_ms_N=event_ms,
        record_ms_N=event_ms + 5,
        positions={PARTITION: start + samples},
        dead_letters=(dead,) if number % 3 == 0 else (),
        id_strings=[text],
        topic_ids={PARTITION: "topic-1"},
        watermarks={PARTITION: int(event_ms[-1])} if samples else {},
    )
