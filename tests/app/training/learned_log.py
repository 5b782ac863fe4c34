"""A log of what a real model has learned from random clicks: every batch is a version of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from springtide.app.config.load import Config
from springtide.app.training.bootstrap import load_state
from springtide.app.training.state.training_state import TrainingState
from springtide.app.version_log.write.writer import LogWriter
from springtide.stream.columns import Batch
from tests.app.training.random_clicks import make_batch


@contextmanager
def resumed(config: Config) -> Iterator[tuple[LogWriter, TrainingState]]:
    """Read the log back as a trainer does that starts; in the end everything is durable and closed."""
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        yield log, state
        log.sync()
        state.learner.table.close()


def learn(log: LogWriter, state: TrainingState, batch: Batch, next_batch: Batch | None = None) -> None:
    """Learn a batch into a version."""
    state.learn(batch, next_batch=next_batch)
    log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))


def learn_numbers(config: Config, start: int, stop: int) -> int:
    """Learn the random batches of these numbers; return the last version's number."""
    with resumed(config) as (log, state):
        for number in range(start, stop):
            learn(log, state, make_batch(number, schema=config.schema))
        return log.last_number
