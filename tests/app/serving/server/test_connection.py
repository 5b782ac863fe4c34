import hmac
import socket
import struct

import msgspec
import pytest

from springtide.app.serving.http import authorization as tokens
from springtide.app.serving.server.connection import MAX_FRAMING_BYTES, ClientTimeouts, HttpConnection
from tests.app.serving.attacked_server import ADMIN, BODIES
from tests.app.serving.raw_connection import JSON, RAW, error_code, get, request
from tests.support.waiting import wait_until

HEAD = b"POST /v1/embeddings/user_id HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = BODIES[JSON]
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@pytest.mark.parametrize(
    "content",
    [
        HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
        HEAD + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 15, 15\r\n\r\n" + BODY,
        HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
        HEAD + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
        HEAD + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
        HEAD + b"Content-Length: -5\r\n\r\n" + BODY,
        HEAD + b"Content-Length: +15\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n" + BODY,
        HEAD + b"Content-Length: \xb2\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + BODY,
        HEAD.replace(b"localhost", b"local\0host") + LENGTH + b"\r\n" + BODY,
        HEAD + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"X : a\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"X: a\rY: b\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"\r\n", b"\n") + b"\n" + BODY,
        HEAD.replace(b"HTTP/1.1", b"HTTP/3.7") + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"POST", b"EVIL") + LENGTH + b"\r\n" + BODY,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\0\1\0\1\xfc\x03\x03" + bytes(100),
        b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_get_an_error_and_close_the_connection(attacked, content):
    connection = attacked.connect()
    assert error_code(connection.exchange(content), 400) == "bad_request"
    assert connection.is_closed()
    attacked.check_healthy()


@pytest.mark.parametrize("name", ["Host", "Authorization", "Content-Type", "X-Springtide-Min-Version"])
def test_a_repeated_important_header_is_rejected(attacked, name):
    twice = [f"{name}: localhost", f"{name}: 5"]
    error_code(attacked.exchange(request(BODIES[RAW], extra=twice)), 400)
    error_code(attacked.exchange(get("/v1/status", *twice)), 400)


def test_an_endless_head_is_rejected(attacked):
    for filler in (b"X: " + b"a" * 2**20, b"".join(b"X%d: a\r\n" % n for n in range(40_000))):
        assert (
            error_code(attacked.exchange(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + filler), 431)
            == "head_too_large"
        )
    trailers = b"".join(b"X%d: a\r\n" % n for n in range(40_000))
    error_code(attacked.exchange(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS[:-2] + trailers), 431, 200)
    fitting = get("/healthz", "X: " + "a" * (MAX_FRAMING_BYTES - 1_000))
    assert attacked.exchange(fitting)[0] == 200


def test_a_trailer_does_not_count_as_a_header(attacked):
    content = b"POST /v1/forget HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    content += b"2\r\n{}\r\n0\r\n" + ADMIN.encode() + b"\r\n\r\n"
    error_code(attacked.exchange(content), 401)


def test_a_response_is_completed_before_garbage_after_its_request_closes_the_connection(attacked):
    for first in (get("/v1/embeddings/user_id/1"), request(BODY, kind=JSON), get("/v1/status")):
        connection = attacked.connect()
        status, _, body = connection.exchange(first + b"\0garbage\r\n\r\n")
        assert status == 200
        assert msgspec.json.decode(body)
        if connection.buffer or not connection.is_closed():
            error_code(connection.receive(), 400)


def test_pipelined_requests_are_answered_in_order(attacked):
    connection = attacked.connect()
    known = request(BODIES[RAW])
    assert connection.exchange(known)[0] == 200
    slow = get("/v1/embeddings/user_id/1/neighbors")
    connection.send(known + slow + known + get("/healthz") + known)
    kinds = [connection.receive()[1]["content-type"] for _ in range(5)]
    assert kinds == [RAW, JSON, RAW, JSON, RAW]
    attacked.check_healthy()


@pytest.mark.parametrize(
    ("authorization", "status", "path"),
    [
        (None, 401, "/v1/forget"),
        ("Bearer admin-secreT", 401, "/v1/forget"),
        ("Bearer admin-secret2", 401, "/v1/forget"),
        ("Bearer ", 401, "/v1/forget"),
        ("Bearer " + "x" * 50_000, 401, "/v1/forget"),
        ("Bearer \xff\xfe", 401, "/v1/forget"),
        ("Basic admin-secret", 401, "/v1/forget"),
        ("admin-secret", 401, "/v1/forget"),
        (None, 401, "/v1/%66orget"),
        (None, 401, "/v1/forget/"),
        (None, 401, "/v1%2fcommands%2fx"),
        (None, 404, "/v1//forget"),
        (None, 404, "/v1/./forget"),
        (None, 404, "/V1/forget"),
    ],
)
def test_no_spelling_of_a_path_or_token_bypasses_authorization(attacked, authorization, status, path):
    extra = [] if authorization is None else [f"Authorization: {authorization}"]
    error_code(attacked.exchange(request(b"{}", kind=JSON, path=path, extra=extra)), status)
    assert not (attacked.path / "commands").exists()


def test_every_token_is_compared_in_full(monkeypatch):
    compared = []
    whole = hmac.compare_digest
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda *pair: compared.append(pair) or whole(*pair))
    known = tokens.Tokens({f"token-{n}": frozenset({"read"}) for n in range(5)})
    known.check("Bearer token-0", "read")
    assert len(compared) == 5
    assert {len(digest) for pair in compared for digest in pair} == {32}


IDLE = {"reads_paused": False, "num_unsent_bytes": 0}


@pytest.mark.parametrize("num_requests", [1, 2], ids=["normal path", "fast path"])
def test_a_reset_cancels_the_keep_alive_timer(attacked, monkeypatch, num_requests):
    """Else the event loop would keep the connection until the timer expires, half a minute later."""
    lost, connection_lost = [], HttpConnection.connection_lost

    def recorded(self, error):
        timer = self.timeout_keep_alive_task
        connection_lost(self, error)
        if error is not None:
            lost.append((timer, self.timeout_keep_alive_task))

    monkeypatch.setattr(HttpConnection, "connection_lost", recorded)
    connection = attacked.connect()
    # a head that no other request has: the second request with it takes the fast path
    content = request(BODIES[RAW], extra=[f"X-Requests: {num_requests}"])
    for _ in range(num_requests):
        assert connection.exchange(content)[0] == 200
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends a reset
    connection.socket.close()
    wait_until(lambda: lost)
    ((timer, timer_after),) = lost
    assert timer.cancelled()
    assert timer_after is None


def test_a_request_that_does_not_complete_expires():
    timeouts = ClientTimeouts()
    assert timeouts.expired(100.0, 5.0, **IDLE) is None  # no request has begun
    timeouts.waiting_since = 100.0
    assert timeouts.expired(105.0, 5.0, **IDLE) is None
    assert timeouts.expired(105.1, 5.0, **IDLE) == "request"


def test_time_in_which_the_server_does_not_read_does_not_count():
    timeouts = ClientTimeouts()
    timeouts.waiting_since = 0.0
    assert timeouts.expired(10.0, 5.0, reads_paused=True, num_unsent_bytes=0) is None
    assert timeouts.expired(14.0, 5.0, **IDLE) is None
    assert timeouts.expired(15.1, 5.0, **IDLE) == "request"


def test_a_response_expires_only_if_no_byte_of_it_is_read():
    timeouts = ClientTimeouts()
    for now, unsent in ((0.0, 900), (4.0, 900), (5.0, 800), (9.0, 800)):
        assert timeouts.expired(now, 5.0, reads_paused=False, num_unsent_bytes=unsent) is None
    assert timeouts.expired(10.1, 5.0, reads_paused=False, num_unsent_bytes=800) == "response"
    assert timeouts.expired(10.2, 5.0, **IDLE) is None
