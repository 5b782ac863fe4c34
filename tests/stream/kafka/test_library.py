"""Connecting to a broker that is slow, absent, or none."""

import errno
import socket
from types import SimpleNamespace

import pytest

from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.library import connect, kafka, prepare_library


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


def test_a_client_that_is_closed_while_it_connects_leaves_no_socket_open():
    class ConnectingSocket(socket.socket):
        def connect_ex(self, address: object) -> int:
            return errno.EINPROGRESS

    class Wait:
        def __await__(self):
            yield

    prepare_library()
    net = SimpleNamespace(wait_write=lambda sock, timeout_at: Wait())
    with ConnectingSocket() as one:
        connecting = kafka.net.inet.KafkaNetSocket().sock_connect(net, one, ("127.0.0.1", 1))
        connecting.send(None)
        assert one.fileno() >= 0
        connecting.close()  # as kafka-python cancels its tasks
        assert one.fileno() == -1
