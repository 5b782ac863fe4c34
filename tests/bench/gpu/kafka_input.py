"""Kafka input of a learner on a GPU: an embedded broker's topic, learned as the trainer does."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from springtide.app.training.step.learner import Learner
from springtide.stream.batcher import Batcher
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.columns import Batch
from springtide.stream.config import SourceConfig
from springtide.stream.positions import Partition
from springtide.stream.source import KafkaSource
from tests.bench.workloads.clicks import SCHEMA, TOPIC, make_clicks
from tests.bench.workloads.topics import fill


@contextmanager
def filled_topic(num_samples: int) -> Iterator[Path]:
    """Run a broker with a topic of one partition and `number` records; yield its log folder."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)):
        fill(SourceConfig(topic=TOPIC, log_path=Path(folder)), make_clicks(num_samples))
        yield Path(folder)


def full(batcher: Batcher) -> Batch | None:
    """Return the next batch if there are enough samples for it."""
    return batcher.take() if batcher.num_rows >= batcher.size.batch_size else None


def from_topic(learner: Learner, log: Path, num_samples: int) -> None:
    """Learn samples from the topic's start; a full batch is taken at once, reports are read one step later."""
    batch_size = learner.config.batch_size
    batcher, waiting, late, num_learned = Batcher(batch_size, float("inf")), None, None, 0
    with KafkaSource(SourceConfig(topic=TOPIC, log_path=log), SCHEMA) as source:
        source.stop_at({Partition(TOPIC, 0): num_samples})
        while num_learned < num_samples:
            if batcher.num_rows < batch_size:
                for columns in source.poll(0.0 if waiting is not None else 1.0):
                    batcher.add(columns)
            batch = waiting if waiting is not None else full(batcher)
            if batch is None:
                continue
            waiting = full(batcher)
            before, late = late, learner.start_step(batch, waiting)
            num_learned += len(batch)
            if before is not None:
                before()
    if late is not None:
        late()
