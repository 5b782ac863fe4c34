"""A log with its broker in this process, and a topic to produce into, for trainers run in threads."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View

from app.config.load import load_config
from app.training.trainer import Trainer
from app.version_log.trainer_status import TrainerStatus, read_status
from stream.broker.embedded import EmbeddedBroker
from stream.kafka.admin import Admin
from stream.kafka.config import KafkaConfig
from stream.kafka.library import kafka
from stream.kafka.producer import Producer
from stream.positions import Partition

CONFIG = """
name = "test"
[schema]
label = "click"
timestamp = "ts"
categorical = ["user_id", "item_id"]
dense = ["age"]
[table]
dim = 4
device_bytes = "8MiB"
disk_path = "{folder}/spill"
[train]
batch_size = 64
max_wait_seconds = 0.05
threads = 1
[log]
path = "{folder}/log"
publish_seconds = 0.05
durable_seconds = 0.05
"""
WAIT_SECONDS = 30.0


class TrainerEnv:
    """A log with its broker, and a topic to produce into."""

    def __init__(self, folder: Path, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.path = folder / "springtide.toml"
        self.path.write_text(CONFIG.format(folder=folder))
        self.config = load_config(self.path)
        self.kafka = KafkaConfig(bootstrap_servers=broker.address)
        self.num = 0

    def configure(self, more: str, *, train: str = "") -> None:
        """More sections, and more keys of [train]."""
        self.path.write_text(self.path.read_text().replace("[train]", f"[train]\n{train}") + more)
        self.config = load_config(self.path)

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
            producer.flush(WAIT_SECONDS)
        self.num += num

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters: their headers as texts, and their values."""
        partition = Partition("clicks.dead", 0)
        with Admin(self.kafka) as admin:
            end = admin.end_offsets(admin.require_topic("clicks.dead"))[partition]
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker.address, fetch_max_wait_ms=5)
        consumer.assign([kafka.TopicPartition(*partition)])
        consumer.seek(kafka.TopicPartition(*partition), 0)
        found: list[Any] = []
        while len(found) < end:
            for polled in consumer.poll(timeout_ms=500).values():
                found += polled
        consumer.close(autocommit=False)
        return [{name: text.decode() for name, text in record.headers} | {"value": record.value} for record in found]

    def status(self) -> TrainerStatus:
        """The newest trainer's status; the default one while there is none."""
        return read_status(self.config.log.path) or TrainerStatus()

    def view(self) -> View:
        directory = LogDirectory(self.config.log.path)
        view = View.open(directory.newest_base())
        for record in directory.records(directory.open_base().tip):
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


def wait_until(check, what: str) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        if check():
            return
        pause.wait(0.01)
    raise AssertionError(f"{what} did not happen")


def records(env):
    return list(LogDirectory(env.config.log.path).records(None))


def published(env, samples: int) -> int:
    """The newest version, once it is one of so many samples."""
    wait_until(lambda: (found := records(env)) and found[-1].meta.samples_trained == samples, f"{samples} samples")
    return records(env)[-1].number


def expected_counts(num: int) -> dict[int, int]:
    return dict(Counter(number % 37 for number in range(num)))


@pytest.fixture
def trainer(env):
    """A trainer that runs beside the test."""
    running = []

    def start(**options) -> Trainer:
        trainer = Trainer(env.config, **options)
        running.append((trainer, *run_in_thread(trainer)))
        return trainer

    yield start
    for trainer, thread, _ in running:
        trainer.stop()
        thread.join(300)
