"""A trainer of `row_log`'s log without Kafka: learns random clicks and publishes until it is killed.

Prints the number of learned samples with each version: `trainer_process CONFIG NUM_ROWS`.
"""

import sys
import time
from dataclasses import replace

import numpy as np
import torch

from springtide.app.config.load import load_config
from springtide.app.training.bootstrap import load_state
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.columns import Batch
from springtide.stream.positions import Partition
from springtide_client.features import Features
from tests.support.batches import batch_of


def draw(random: np.random.Generator, size: int, num_rows: int) -> Batch:
    """Return random clicks on items of a long tail."""
    items = (random.zipf(1.05, size) * 7919) % num_rows
    users = random.integers(0, 100_000, size)
    now_ms, partition = time.time_ns() // 1_000_000, Partition("clicks", 0)
    features = Features(np.stack([users, items], 1), (), random.normal(size=(size, 1)).astype(np.float32))
    batch = batch_of(features, random.random(size) < 0.3, now_ms, {partition: 0})
    return replace(batch, topic_ids={partition: "topic"}, watermarks={partition: now_ms})


def main() -> None:
    config_path, num_rows = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    config = load_config(config_path)
    random = np.random.default_rng(0)
    batches = [draw(random, config.train.batch_size, num_rows) for _ in range(64)]
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        published, number = time.monotonic(), 0
        while True:
            state.learn(batches[number % len(batches)])
            number += 1
            if time.monotonic() - published >= config.log.publish_seconds:
                now_ms = time.time_ns() // 1_000_000
                log.append(*state.checkpoint(created_ms=now_ms, complete_until_ms=now_ms))
                print(state.samples_trained, flush=True)
                published = time.monotonic()


if __name__ == "__main__":
    main()
