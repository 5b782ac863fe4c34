"""Limits for one client: requests in flight, connections, and the time limit."""

import logging
import socket

import pytest

from tests.support.waiting import wait_until

USER = 0
JSON = "application/json"


class RawClient:
    """A raw connection to a server."""

    def __init__(self, client, *, receive_bytes=None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(20)
        self.socket.connect((client.base_url.host, client.base_url.port))

    def send(self, content: bytes) -> "RawClient":
        self.socket.sendall(content)
        return self

    def rest(self) -> bytes:
        """Everything until the server closes."""
        received = b""
        try:
            while piece := self.socket.recv(65_536):
                received += piece
        except ConnectionResetError:
            pass
        return received

    def answer(self, end: bytes = b"}") -> bytes:
        received = b""
        while not received.endswith(end):
            piece = self.socket.recv(65_536)
            assert piece, received
            received += piece
        return received


@pytest.fixture
def connect():
    made = []

    def connection(client, **how):
        made.append(RawClient(client, **how))
        return made[-1]

    yield connection
    for raw in made:
        raw.socket.close()


@pytest.fixture
def serving(world):
    def start(**limits):
        world.log.start_epoch()
        number = world.log.publish({(USER, 1): [1, 2, 3, 4]})
        client = world.serve(**limits)
        world.served(client, number)
        return client

    return start


def post(path: str, body: bytes, *, kind=JSON) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


LOOKUP = post("/v1/embeddings/user_id", b'{"ids":[1]}')
OTHER_LOOKUP = LOOKUP.replace(b"Host:", b"X-Other: 1\r\nHost:")  # its head is not known after the first
PREDICT = post("/v1/predict", b'{"instances":[{"user_id":1}]}')


@pytest.mark.parametrize("request_bytes", [OTHER_LOOKUP, PREDICT])
def test_requests_beyond_max_in_flight_get_429_and_probes_do_not(serving, connect, request_bytes) -> None:
    client = serving(max_in_flight=1)
    known = connect(client).send(LOOKUP)
    known.answer(b"]]}")
    slow = connect(client).send(request_bytes[:-1])
    wait_until(lambda: "springtide_http_requests_in_flight 1" in client.get("/metrics").text)
    refused = client.post("/v1/predict", json={"instances": [{}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
    assert refused.headers["retry-after"] == "1"
    assert client.post("/v1/embeddings/user_id", json={"ids": [1, 2]}).status_code == 429
    assert client.get("/v1/embeddings/user_id/1").status_code == 429
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert 'springtide_requests_rejected_total{reason="in_flight"} 3' in client.get("/metrics").text
    # a lookup on the fast path is never in flight
    assert known.send(LOOKUP).answer(b"]]}").startswith(b"HTTP/1.1 200")
    assert slow.send(request_bytes[-1:]).answer().startswith(b"HTTP/1.1 200")
    assert client.post("/v1/predict", json={"instances": [{}]}).status_code == 200


def test_a_connection_beyond_max_connections_gets_429(serving, connect) -> None:
    client = serving(max_connections=2)
    connect(client).send(LOOKUP).answer(b"]]}")
    refused = connect(client).rest()
    assert refused.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 1\r\n" in refused
    assert client.get("/healthz").status_code == 200


def test_an_unfinished_request_gets_408(serving, connect) -> None:
    client = serving(request_timeout_seconds=1.0)
    pieces = [whole[:length] for whole in (LOOKUP, PREDICT) for length in (0, len(whole) - 40, len(whole) - 1)]
    for raw in [connect(client).send(piece) for piece in pieces]:
        error = raw.rest()
        assert error.startswith(b"HTTP/1.1 408")
        assert b'"code":"request_timeout"' in error
    assert client.post("/v1/embeddings/user_id", json={"ids": [1]}).status_code == 200
    assert 'springtide_requests_rejected_total{reason="timeout"} 6' in client.get("/metrics").text


def test_the_request_timeout_does_not_close_idle_connections(serving, connect) -> None:
    client = serving(request_timeout_seconds=1.0)
    raw, slow = connect(client), connect(client)
    raw.send(LOOKUP).answer(b"]]}")
    raw.send(LOOKUP).answer(b"]]}")
    slow.send(LOOKUP[:50]).rest()  # longer than the limit
    assert raw.send(LOOKUP).answer(b"]]}").startswith(b"HTTP/1.1 200")
    client.get("/healthz")
    assert raw.send(PREDICT).answer().startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_its_response_is_disconnected(serving, connect) -> None:
    client = serving(request_timeout_seconds=1.0, max_ids=2_000_000)
    body = bytes(8 * 1_000_000)
    raw = connect(client, receive_bytes=4_096)
    raw.send(post("/v1/embeddings/user_id", body, kind="application/octet-stream"))
    wait_until(lambda: 'springtide_requests_rejected_total{reason="timeout"} 1' in client.get("/metrics").text)
    assert len(raw.rest()) < 17 * 1_000_000


def test_the_access_log_samples_requests_of_both_paths(serving, connect, caplog) -> None:
    client = serving(access_log_sample_rate=0.25)
    raw = connect(client)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            raw.send(LOOKUP).answer(b"]]}")
        for _ in range(10):
            client.get("/v1/embeddings/user_id/2")
    lines = [record for record in caplog.records if record.message == "request"]
    assert 4 <= len(lines) <= 6
    assert {(record.method, record.route, record.status) for record in lines} == {
        ("POST", "/v1/embeddings/{feature}", 200),
        ("GET", "/v1/embeddings/{feature}/{id:path}", 404),
    }
    assert all(record.ms >= 0 for record in lines)
