"""The trainer of DLRM-small over a topic that it reads repeatedly, with and without its log."""

import time
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from springtide.app.config.load import Config
from springtide.app.training.start_position import StartPosition
from springtide.app.training.trainer import Trainer
from tests.bench.harness.report import fail
from tests.bench.workloads.small_dlrm import SETTINGS
from tests.support.config import Section, write_config

BATCH = 4096


def write_settings(
    folder: Path,
    address: str,
    *,
    base_minutes: float = 10.0,
    batch: int = BATCH,
    top: tuple[int, ...] = (512, 256),
    log: Section | None = None,
    threads: int = 2,
) -> Path:
    """Write the configuration into `folder`, which also holds log and spill; return its path.

    `top`: widths of the net's upper layers; `log`: more keys of `[log]`; `threads`: of the learning step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings: Section = {
        "name": "cost",
        "source": {"bootstrap_servers": address, "queue_bytes": "8MiB"},
        "table": {"disk_path": folder / "spill", "num_threads": threads},
        "model": {"options": {"top": top}},
        "train": {"batch_size": batch, "max_wait_seconds": inf, "threads": threads},
        "log": {"path": folder / "log", "publish_seconds": 0.5, "base_minutes": base_minutes, **(log or {})},
        "gate": {"logloss_ratio": inf},
        "serve": {"cache_path": folder},
    }
    return write_config(folder / f"base-minutes-{base_minutes}.toml", SETTINGS, settings)


class LoggedTrainer:
    """A trainer whose loop is driven from outside, a number of samples at a time."""

    def __init__(self, config: Config) -> None:
        self.trainer = Trainer(config)
        self.trainer.start()
        self.log_path = Path(config.log.path)
        self.step_seconds: list[float] = []

    def __enter__(self) -> "LoggedTrainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.trainer.close()

    def run(self, num_samples: int) -> float:
        """Learn `num_samples` from the topic's start; return samples per second, and set `step_seconds` per batch."""
        trainer = self.trainer
        self._rewind()
        target = trainer.state.samples_trained + num_samples
        self._pass()  # the first batch waits for the broker
        begun, learned = time.perf_counter(), trainer.state.samples_trained
        self.step_seconds = []
        while trainer.state.samples_trained < target:
            self._pass()
        return (trainer.state.samples_trained - learned) / (time.perf_counter() - begun)

    def _pass(self) -> None:
        """Run the trainer's loop until a batch is learned; the time includes the work between batches."""
        start, learned = time.perf_counter(), self.trainer.state.samples_trained
        while self.trainer.state.samples_trained == learned:
            self.trainer.run_once()
            self.trainer.report_status()
            if self.trainer.gate.held is not None:
                fail(f"the health gate: {self.trainer.gate.held.detail}")
        self.step_seconds.append(time.perf_counter() - start)

    def _rewind(self) -> None:
        """Move to the topic's start, as `--from-offset earliest` does."""
        trainer = self.trainer
        session = trainer.session
        session.batches.close()
        session.seek(StartPosition(place="earliest"))
        session.start()

    def settle(self) -> None:
        """Make everything that was learned durable in the log."""
        self.trainer.publish_last()
        self.trainer.log.sync()

    @property
    def loss(self) -> float | None:
        """Return the loss of the newest batch."""
        return self.trainer.state.loss

    @property
    def bfloat16(self) -> bool:
        return self.trainer.state.learner.bfloat16

    def rows(self, feature: str, ids_N: Any) -> Any:
        """Return the table's rows, float32 (N, dim)."""
        number = self.trainer.config.schema.number(feature)
        return self.trainer.state.learner.table.find(np.full(len(ids_N), number, np.uint16), ids_N)[0]


class UnloggedTrainer(LoggedTrainer):
    """A trainer that never publishes a version, and whose table does not track dirty rows."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.trainer.publisher.postpone(float("inf"))
        self.trainer.state.learner.table.tracked = False

    def settle(self) -> None:
        """Do nothing: there is no log."""


def version_count(trainer: Trainer) -> int:
    """Return the number of versions of this epoch."""
    return 0 if trainer.log.last_encoded is None else trainer.log.last_encoded.number & 0xFFFFFFFF
