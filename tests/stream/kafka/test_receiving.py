"""Responses that arrive in any pieces, with and without TLS, and connections that end within one."""

import ssl
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.stream.kafka.consumer import PartitionConsumer
from springtide.stream.kafka.library import kafka
from springtide.stream.kafka.receiving import can_receive_in_place, receive

TRANSPORTS = kafka.net.transport.KafkaTCPTransport, kafka.net.transport.KafkaSSLTransport
WOULD_BLOCK = {TRANSPORTS[0]: BlockingIOError, TRANSPORTS[1]: ssl.SSLWantReadError}


class Parser(kafka.protocol.parser.KafkaProtocol):
    """kafka-python's parser of frames; a response is its bytes."""

    def _process_response(self, buffer):
        return bytes(buffer.read())


class Socket:
    """Gives what has arrived; without bytes it would block or, at the end, is closed."""

    def __init__(self, would_block, error=None):
        self.would_block, self.error = would_block, error
        self.arrived, self.is_ended = bytearray(), False

    def recv(self, num_bytes):
        if not self.arrived and not self.is_ended:
            raise self.would_block
        if not self.arrived and self.error:
            raise self.error
        data, self.arrived = bytes(self.arrived[:num_bytes]), self.arrived[num_bytes:]
        return data

    def getpeername(self):
        raise OSError

    def recv_into(self, view):
        data = self.recv(len(view))
        view[: len(data)] = data
        return len(data)


def open_transport(kind, sock):
    transport = kind.__new__(kind)
    TRANSPORTS[0].__init__(transport, None, sock)
    transport.set_protocol(SimpleNamespace(parser=Parser()))
    return transport


def receive_once(transport):
    data, error = receive(transport, transport._sock_recv)
    return transport._protocol.parser.receive_bytes(data), error


def test_kafka_python_has_the_private_names_that_receiving_in_place_needs(testbed):
    testbed.create()
    reader = PartitionConsumer(testbed.kafka, {testbed.partition: 0})
    assert reader.receives_in_place
    transports = []
    while not transports:  # a busy broker takes its time to accept; a poll may end before it has
        reader.poll(0.1)
        connections = reader.consumer._client._manager._conns.values()
        transports = [connection.transport for connection in connections if connection.transport is not None]
    assert any("_sock_recv" in vars(transport) for transport in transports)
    assert all(can_receive_in_place(transport) for transport in transports)
    reader.close()


@given(
    kind=st.sampled_from(TRANSPORTS),
    lengths=st.lists(st.sampled_from([0, 1, 2, 100, 4091, 4092, 4093, 4096, 20_000]), max_size=5),
    pieces=st.lists(st.sampled_from([1, 2, 3, 4, 5, 100, 4095, 4096, 4097, 9000]), max_size=30),
)
def test_responses_are_the_same_however_their_bytes_arrive(kind, lengths, pieces):
    responses = [bytes((n + i) % 251 for i in range(length)) for n, length in enumerate(lengths)]
    sent = b"".join(struct.pack(">i", len(response)) + response for response in responses)
    sock = Socket(WOULD_BLOCK[kind])
    transport = open_transport(kind, sock)
    found = []
    for piece in [*pieces, len(sent)]:
        sock.arrived += sent[:piece]
        sent = sent[piece:]
        while sock.arrived:  # as a selector would wake it
            parsed, error = receive_once(transport)
            assert error is None
            found += parsed
    assert found == responses
    assert receive_once(transport) == ([], None)


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("num_bytes", [0, 3, 4, 5, 5000, 10_003])
@pytest.mark.parametrize("failure", [None, ConnectionResetError("reset")])
def test_a_connection_that_ends_within_a_response_is_lost(kind, num_bytes, failure):
    sock = Socket(WOULD_BLOCK[kind], failure)
    transport = open_transport(kind, sock)
    sock.arrived += (struct.pack(">i", 10_000) + bytes(10_000))[:num_bytes]
    sock.is_ended = True
    for _ in range(5):
        parsed, error = receive_once(transport)
        assert not parsed
        if error is not None:
            break
    assert isinstance(error, kafka.errors.KafkaConnectionError)
