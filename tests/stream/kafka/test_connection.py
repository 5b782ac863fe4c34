"""Connecting to a broker that is slow or absent."""

import pytest

from springtide.stream.errors import ProduceError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.connection import connect
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.producer import Producer


class SlowClient:
    """Connects at its second try; remembers how long each try was allowed to take."""

    def __init__(self) -> None:
        self.timeouts_ms: list[int] = []

    def __call__(self, *, bootstrap_timeout_ms: int, **options: object) -> "SlowClient":
        self.timeouts_ms.append(bootstrap_timeout_ms)
        if len(self.timeouts_ms) == 1:
            raise kafka.errors.KafkaTimeoutError("Unable to bootstrap")
        return self


def test_a_patient_client_gives_a_broker_that_listens_more_time(own_broker):
    own_broker.start()
    config, client = KafkaConfig(bootstrap_servers=own_broker.address), SlowClient()
    assert connect(client, config, patient=True) is client
    assert client.timeouts_ms == [3000, 15_000]


def test_an_impatient_client_does_not(own_broker):
    own_broker.start()
    client = SlowClient()
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        connect(client, KafkaConfig(bootstrap_servers=own_broker.address))
    assert client.timeouts_ms == [3000]


def test_nobody_waits_longer_where_nothing_listens():
    client = SlowClient()
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        connect(client, KafkaConfig(bootstrap_servers="127.0.0.1:1"), patient=True)
    assert client.timeouts_ms == [3000]


def test_asking_for_a_topic_creates_none(testbed):
    consumer = PartitionConsumer(testbed.kafka, {testbed.partition: 0})
    for _ in range(3):  # each asks where the partition is
        consumer.poll(0.1)
    consumer.close()
    with Producer(testbed.kafka, delivery_seconds=0.5) as producer, pytest.raises(ProduceError):
        producer.send(testbed.name, b"x")
    with Admin(testbed.kafka) as admin:
        assert admin.topic(testbed.name) is None
