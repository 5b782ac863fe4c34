"""A log, a broker and a topic to produce into, for trainers that run in threads."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from springtide.app.config.load import load_config
from springtide.app.training.trainer import Trainer
from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.support.config import Section, config_in, edit_config
from tests.support.kafka import read_topic
from tests.support.waiting import DEADLINE_SECONDS, wait_until

SETTINGS = """
name = "test"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
dense = ["age"]
[train]
batch_size = 64
min_batch_size = 0
max_wait_seconds = 0.05
threads = 1
[log]
publish_seconds = 0.05
durable_seconds = 0.05
"""


class TrainerEnv:
    """A log with its broker, and a topic to produce into."""

    def __init__(self, folder: Path, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.config = config_in(folder, SETTINGS)
        self.path = self.config.path
        self.kafka = KafkaConfig(bootstrap_servers=broker.address)
        self.num = 0

    def configure(self, *changes: Section | str) -> None:
        """Change some keys of the settings."""
        self.config = load_config(edit_config(self.path, *changes))

    def create(self, *, partitions: int = 1) -> None:
        with Admin(self.kafka) as admin:
            admin.ensure_topic("clicks", num_partitions=partitions)

    def produce(
        self,
        num: int,
        *,
        bad: int = 0,
        label: Callable[[int], int] = lambda number: int(number % 37 % 3 == 0),
        partition: int = 0,
        record_ms: int | None = None,
    ) -> None:
        self.create()
        with Producer(self.kafka) as producer:
            for number in range(self.num, self.num + num):
                click = {"user_id": number % 37, "item_id": f"item {number % 11}", "age": number % 80}
                click |= {"click": label(number), "ts": 1_700_000_000_000 + number}
                producer.send("clicks", json.dumps(click).encode(), partition=partition, record_ms=record_ms)
            for _ in range(bad):
                producer.send("clicks", b"{", partition=partition)
            producer.flush(DEADLINE_SECONDS)
        self.num += num

    def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters: their headers as strings, and their values."""
        found = read_topic(self.broker.address, "clicks.dead")
        return [{name: text.decode() for name, text in record.headers} | {"value": record.value} for record in found]

    def status(self) -> TrainerStatus:
        """The newest trainer's status; the default one while there is none."""
        return read_status(self.config.log.path) or TrainerStatus()

    def view(self) -> View:
        directory = LogDirectory(self.config.log.path)
        view = View.open(directory.newest_base())
        for record in directory.records(directory.open_base().head):
            view = view.apply(record)
        return view

    def counts(self) -> dict[int, int]:
        view = self.view()
        return {user: view.row_info(0, user)["count"] for user in range(37)}


@pytest.fixture
def env(tmp_path: Path) -> Iterator[TrainerEnv]:
    with EmbeddedBroker(tmp_path / "log") as broker:
        yield TrainerEnv(tmp_path, broker)


def run_in_thread(trainer: Trainer) -> tuple[threading.Thread, list[TrainerStatus]]:
    ended: list[TrainerStatus] = []
    thread = threading.Thread(target=lambda: ended.append(trainer.run()), daemon=True)
    thread.start()
    return thread, ended


def records(env):
    return list(LogDirectory(env.config.log.path).records(None))


def published(env, samples: int) -> int:
    """Wait until a version of that many samples is published; return its number."""
    wait_until(lambda: (found := records(env)) and found[-1].meta.samples_trained == samples, f"{samples} samples")
    return records(env)[-1].number


def expected_counts(num: int) -> dict[int, int]:
    return dict(Counter(number % 37 for number in range(num)))


@pytest.fixture
def trainer(env):
    """Start trainers that run beside the test and stop with it."""
    running = []

    def start(**options) -> Trainer:
        trainer = Trainer(env.config, **options)
        running.append((trainer, *run_in_thread(trainer)))
        return trainer

    yield start
    for trainer, thread, _ in running:
        trainer.stop()
        thread.join(300)
