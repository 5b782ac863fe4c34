"""Connecting to a broker that is slow or absent."""

import socket
import threading
from typing import ClassVar

import pytest

from springtide.stream.errors import ProduceError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.connection import connect, make_client
from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka, prepare_library
from springtide.stream.kafka.producer import Producer


@pytest.fixture
def slow_client() -> type:
    """A client that connects at its second try; its class remembers how long each try was allowed to take."""

    class SlowClient:
        timeouts_ms: ClassVar[list[int]] = []

        def __init__(self, *, bootstrap_timeout_ms: int, **options: object) -> None:
            self.timeouts_ms.append(bootstrap_timeout_ms)
            if len(self.timeouts_ms) == 1:
                raise kafka.errors.KafkaTimeoutError("Unable to bootstrap")

    return SlowClient


def test_a_patient_client_gives_a_broker_that_listens_more_time(own_broker, slow_client):
    own_broker.start()
    config = KafkaConfig(bootstrap_servers=own_broker.address)
    assert isinstance(connect(slow_client, config, patient=True), slow_client)
    assert slow_client.timeouts_ms == [3000, 15_000]


def test_an_impatient_client_does_not(own_broker, slow_client):
    own_broker.start()
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        connect(slow_client, KafkaConfig(bootstrap_servers=own_broker.address))
    assert slow_client.timeouts_ms == [3000]


def test_nobody_waits_longer_where_nothing_listens(slow_client):
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        connect(slow_client, KafkaConfig(bootstrap_servers="127.0.0.1:1"), patient=True)
    assert slow_client.timeouts_ms == [3000]


@pytest.mark.parametrize("client", [kafka.admin.KafkaAdminClient, kafka.KafkaConsumer, kafka.KafkaProducer])
def test_a_client_that_a_broker_does_not_answer_leaves_nothing_behind(client):
    prepare_library()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = KafkaConfig(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}")
        before = {thread.ident for thread in threading.enumerate()}
        with pytest.raises(kafka.errors.KafkaError):
            make_client(client, config.client_options() | {"bootstrap_timeout_ms": 100})
        left = [thread.name for thread in threading.enumerate() if thread.ident not in before]
        assert not [name for name in left if "kafka" in name]


def test_a_connection_that_the_library_lost_sight_of_is_closed_with_its_client(testbed):
    with Admin(testbed.kafka) as admin:
        admin.topic(testbed.name)
        connections = admin.client._manager._conns
        sockets = [connection.transport._sock for connection in connections.values()]
        connections.clear()  # as when another thread was setting it up while the client was closed
        assert sockets
        assert all(one.fileno() >= 0 for one in sockets)
    assert [one.fileno() for one in sockets] == [-1] * len(sockets)


def test_asking_for_a_topic_creates_none(testbed):
    consumer = PartitionConsumer(testbed.kafka, {testbed.partition: 0})
    for _ in range(3):  # each asks where the partition is
        consumer.poll(0.1)
    consumer.close()
    with Producer(testbed.kafka, delivery_seconds=0.5) as producer, pytest.raises(ProduceError):
        producer.send(testbed.name, b"x")
    with Admin(testbed.kafka) as admin:
        assert admin.topic(testbed.name) is None
