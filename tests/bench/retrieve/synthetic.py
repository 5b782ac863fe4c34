"""Synthetic clicks for the bench of retrieval: users like the items of some categories."""

# N samples
import time
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import torch

from springtide.app.config.load import load_config
from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.columns import Batch
from springtide.stream.positions import Partition
from springtide_client.features import Features
from tests.support.batches import batch_of
from tests.support.config import Section

NUM_USERS, NUM_CATEGORIES, BATCH = 100_000, 200, 8_192
PUBLISH_SECONDS = 0.5
NEW_ITEMS = 10_000_000  # ids from here on come while users ask
SETTINGS: Section = {
    "schema": {"categorical": ["user_id", "taste", "item_id", "category"], "dense": ["price"]},
    "table": {"device_bytes": "2GiB"},
    "model": {"options": {"item": ["item_id", "category", "price"]}},
}


def make_batch(number: int, items_N: np.ndarray) -> Batch:
    """Users see items; they click those of the three categories next to their taste."""
    draw, num = np.random.default_rng(number), len(items_N)
    users_N = draw.integers(0, NUM_USERS, num)
    tastes_N, categories_N = users_N % NUM_CATEGORIES, items_N % NUM_CATEGORIES
    matched_N = draw.random(num) < 0.3  # else a click would be rare
    users_N = np.where(matched_N, users_N - tastes_N + categories_N, users_N)
    tastes_N = users_N % NUM_CATEGORIES
    clicks_N = (abs(tastes_N - categories_N) <= 1) & (draw.random(num) < 0.8)
    ids = np.stack([users_N, tastes_N, items_N, categories_N], axis=1)
    features = Features(ids, (), (items_N % 97).astype(np.float32)[:, None])
    event_ms, partition = 1_700_000_000_000 + number, Partition("clicks", 0)
    batch = batch_of(features, clicks_N, event_ms, {partition: (number + 1) * BATCH})
    return replace(batch, watermarks={partition: event_ms})


def learn_items(state: TrainingState, log: LogWriter, num_items: int) -> int:
    """Learn each item once, in versions of 16 batches; return the number of batches."""
    order = np.random.default_rng(0).permutation(num_items)
    numbers = range(0, num_items, BATCH)
    for number, start in enumerate(numbers):
        state.learn(make_batch(number, order[start : start + BATCH]))
        if number % 16 == 15 or start == numbers[-1]:
            log.append(*state.checkpoint(created_ms=number, complete_until_ms=1))
            log.sync()
    log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
    log.sync()
    return len(numbers)


def train_on(config_path: Path, num_items: int, first_batch: int, ends: Event) -> None:
    """Go on in this process: a batch after the other, a version every half second, ten new items in each."""
    torch.set_num_threads(1)
    config = load_config(config_path)
    with LogWriter.open(config.log, schema=config.schema, wait_seconds=30) as log:
        state = load_state(config, log)
        number, draw = first_batch, np.random.default_rng(1)
        while not ends.is_set():
            began, version = time.monotonic(), number
            while time.monotonic() - began < PUBLISH_SECONDS:
                items_N = draw.integers(0, num_items, BATCH // 4)
                items_N[:10] = NEW_ITEMS + 10 * version + np.arange(10)
                state.learn(make_batch(number, items_N))
                number += 1
            log.append(*state.checkpoint(created_ms=number, complete_until_ms=1))
        log.sync()
        state.learner.table.close()


def users() -> list[dict[str, object]]:
    """Return the fields of some users."""
    ids = np.random.default_rng(7).integers(0, NUM_USERS, 200).tolist()
    return [{"user_id": user, "taste": user % NUM_CATEGORIES} for user in ids]
