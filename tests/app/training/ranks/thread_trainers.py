"""Trainers of several ranks as threads of one process: they share a broker, a topic and a log."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import HashStore

from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.trainer import Trainer
from tests.app.training.trainer_env import TrainerEnv
from tests.support.thread_ranks import ThreadExchange, on_ranks
from tests.support.waiting import DEADLINE_SECONDS

TIMEOUT_SECONDS = 60.0


def on_trainers(env: TrainerEnv, num_ranks: int, work: Callable[[Trainer], Any] = Trainer.run, **options: Any) -> Any:
    """Start so many ranks; return what `work` returns on each."""
    store = HashStore()

    def run(exchange: ThreadExchange) -> Any:
        ranks = Ranks(exchange, store, timeout_seconds=TIMEOUT_SECONDS)
        return work(Trainer(env.config, ranks=ranks, **options))

    return on_ranks(num_ranks, run)


class RunningRanks:
    """Trainers that run beside the test, by rank."""

    def __init__(self, num_ranks: int) -> None:
        self.trainers: dict[int, Trainer] = {}
        self.ended: list[Any] = []
        self.all_started = threading.Barrier(num_ranks + 1)

    def run(self, trainer: Trainer) -> Any:
        self.trainers[trainer.ranks.rank] = trainer
        self.all_started.wait(DEADLINE_SECONDS)
        return trainer.run()


@contextmanager
def running_ranks(env: TrainerEnv, num_ranks: int, **options: Any) -> Iterator[RunningRanks]:
    """Start so many ranks, and stop them in the end by asking the last one."""
    running = RunningRanks(num_ranks)
    thread = threading.Thread(
        target=lambda: running.ended.extend(on_trainers(env, num_ranks, running.run, **options)), daemon=True
    )
    thread.start()
    running.all_started.wait(DEADLINE_SECONDS)
    try:
        yield running
    finally:
        running.trainers[num_ranks - 1].stop()
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
