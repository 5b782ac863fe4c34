"""A broker for the tests of this folder, embedded or Apache Kafka, and a topic of its own for each test."""

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.columns import Columns
from springtide.stream.config import SourceConfig
from springtide.stream.kafka.admin import Admin, Topic
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide.stream.positions import ALL_PARTITIONS, Partition, PartitionShare
from springtide.stream.source import KafkaSource
from springtide_client.schema import Schema
from tests.support.apache_kafka import ApacheKafka, shared_node
from tests.support.broker import USES_APACHE
from tests.support.kafka import configure_topic
from tests.support.waiting import DEADLINE_SECONDS

SCHEMA = Schema(labels=("click",), timestamp="ts", categorical=("user_id",))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker | ApacheKafka]:
    if USES_APACHE:
        yield shared_node()
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("log")) as broker:
        yield broker


@dataclass
class Testbed:
    """A topic, and ways to write and read it."""

    broker: EmbeddedBroker | ApacheKafka
    name: str
    sources: list[KafkaSource] = field(default_factory=list)

    @property
    def kafka(self) -> KafkaConfig:
        return KafkaConfig(bootstrap_servers=self.broker.address)

    @property
    def partition(self) -> Partition:
        return Partition(self.name, 0)

    def create(self, num_partitions: int = 1) -> Topic:
        with Admin(self.kafka) as admin:
            return admin.ensure_topic(self.name, num_partitions=num_partitions)

    def configure(self, settings: dict[str, str]) -> None:
        """Change settings of the topic; the embedded broker has none."""
        if not isinstance(self.broker, EmbeddedBroker):
            configure_topic(self.broker.address, self.name, settings)

    def delete(self) -> None:
        with Admin(self.kafka) as admin:
            admin.delete_topic(self.name)

    def produce(self, values: list[bytes | None], **options: Any) -> None:
        with Producer(self.kafka) as producer:
            for value in values:
                producer.send(self.name, value, **options)
            producer.flush()

    def fill(self, users: Iterable[int]) -> Topic:
        """Create the topic, and produce a click of each user."""
        topic = self.create()
        self.produce([self.click(user) for user in users])
        return topic

    def source(
        self,
        positions: dict[Partition, Any] | None = None,
        share: PartitionShare = ALL_PARTITIONS,
        **options: Any,
    ) -> KafkaSource:
        place: dict[str, Any] = {"bootstrap_servers": self.broker.address, "on_reset": "earliest"}
        if isinstance(self.broker, EmbeddedBroker):
            place = {"log_path": self.broker.log_path}
        config = SourceConfig(**({"topic": self.name} | place | options))
        source = KafkaSource(config, SCHEMA, positions, share=share)
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
    def read(source: KafkaSource, num_rows: int) -> list[Columns]:
        """Poll until at least `num_rows` rows have arrived."""
        found: list[Columns] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while sum(len(part) for part in found) < num_rows:
            assert time.monotonic() < deadline, (
                f"{source.status.state} {source.status.reason}: {sum(map(len, found))} of {num_rows} rows"
            )
            found += source.poll(0.1)
        return found


NUMBERS = itertools.count()  # of topics: tests of two modules may have one name


@pytest.fixture
def testbed(broker: EmbeddedBroker | ApacheKafka, request: pytest.FixtureRequest) -> Iterator[Testbed]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:180]
    testbed = Testbed(broker, f"{name}-{next(NUMBERS)}")
    yield testbed
    for source in testbed.sources:
        source.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker that the test may kill."""
    if USES_APACHE:
        pytest.skip("not with Apache Kafka: it kills its own embedded broker, test_faults.py kills a node")
    broker = EmbeddedBroker(tmp_path / "log")
    yield broker
    broker.stop()
