"""A real embedded broker for the tests of this folder, a topic of its own for each test."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from springtide_client.schema import Schema

from stream.broker.embedded import EmbeddedBroker
from stream.columns import Columns
from stream.config import SourceConfig
from stream.kafka.admin import Admin, Topic
from stream.kafka.consumer import KafkaConfig
from stream.kafka.producer import Producer
from stream.positions import Partition
from stream.source import Source

SCHEMA = Schema(labels=("click",), timestamp="ts", categorical=("user_id",))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("log")) as broker:
        yield broker


@dataclass
class Bench:
    """A topic and ways to write and read it."""

    broker: EmbeddedBroker
    name: str
    sources: list[Source] = field(default_factory=list)

    @property
    def kafka(self) -> KafkaConfig:
        return KafkaConfig(bootstrap_servers=self.broker.address)

    @property
    def partition(self) -> Partition:
        return Partition(self.name, 0)

    def create(self, num_partitions: int = 1) -> Topic:
        with Admin(self.kafka) as admin:
            return admin.ensure_topic(self.name, num_partitions=num_partitions)

    def delete(self) -> None:
        with Admin(self.kafka) as admin:
            admin.delete_topic(self.name)

    def produce(self, values: list[bytes | None], **options: Any) -> None:
        with Producer(self.kafka) as producer:
            for value in values:
                producer.send(self.name, value, **options)
            producer.flush()

    def source(self, positions: dict[Partition, Any] | None = None, **options: Any) -> Source:
        config = SourceConfig(**({"topic": self.name, "log_path": self.broker.log_path} | options))
        source = Source(config, SCHEMA, positions)
        self.sources.append(source)
        return source

    @staticmethod
    def click(user: int, *, ts: int | None = None) -> bytes:
        return b'{"user_id": %d, "click": %d, "ts": %d}' % (
            user,
            user % 2,
            int(time.time() * 1000) if ts is None else ts,
        )

    @staticmethod
    def users(columns: list[Columns]) -> list[int]:
        return [int(user) for part in columns for user in part.features.categorical_NC[:, 0]]

    @staticmethod
    def offsets(columns: list[Columns], number: int = 0) -> list[int]:
        """The offsets of all rows of a partition."""
        return [
            int(offset)
            for part in columns
            for offset, p in zip(part.offset_N, part.partition_N, strict=True)
            if part.partitions[p].number == number
        ]

    @staticmethod
    def read(source: Source, num_rows: int, seconds: float = 20.0) -> list[Columns]:
        """Columns of at least so many rows."""
        found: list[Columns] = []
        deadline = time.monotonic() + seconds
        while sum(len(part) for part in found) < num_rows:
            assert time.monotonic() < deadline, (
                f"{source.state} {source.reason}: {sum(map(len, found))} of {num_rows} rows"
            )
            found += source.poll(0.1)
        return found

    @staticmethod
    def until(check: Callable[[], Any], seconds: float = 10.0) -> Any:
        """The first true value of check()."""
        deadline = time.monotonic() + seconds
        while not (value := check()):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return value


@pytest.fixture
def bench(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(broker, "".join(c if c.isalnum() else "-" for c in request.node.name)[:200])
    yield bench
    for source in bench.sources:
        source.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may kill."""
    broker = EmbeddedBroker(tmp_path / "log")
    yield broker
    broker.stop()
