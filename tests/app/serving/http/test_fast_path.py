"""The fast path gives the same responses as the normal path, and leaves everything unusual to it."""

import contextlib
import http.client
import re
import urllib.parse

import httpx
import msgspec
import numpy as np
import pytest
import urllib3

from springtide.app.serving.http import fast_path
from springtide.app.serving.server import connection
from springtide_client.keys import hash_string
from tests.app.serving.raw_connection import JSON, MSGPACK, RAW, error_code, request

USER = 0


@pytest.fixture
def answered(monkeypatch):
    """The heads that took the fast path, in order."""
    heads = []
    whole = fast_path.FastPath.respond

    def watched(self, data, later):
        answer = whole(self, data, later)
        if answer is not None and not isinstance(answer, int):
            heads.append(data[: data.find(b"\r\n\r\n") + 4])
        return answer

    monkeypatch.setattr(fast_path.FastPath, "respond", watched)
    return heads


def raw_ids(*ids: int) -> bytes:
    return np.array(ids, "<i8").tobytes()


def same_but_for_time(one, other) -> bool:
    quiet = [
        (status, {k: v for k, v in headers.items() if k not in ("date", "x-springtide-staleness-ms")}, body)
        for status, headers, body in (one, other)
    ]
    return quiet[0] == quiet[1] and one[1].keys() == other[1].keys()


@pytest.fixture
def client(world):
    world.log.start_epoch()
    number = world.log.publish({(USER, 1): [1, 2, 3, 4], (USER, 2): [0.1, 0, -0.3, 1e-7]}, forgotten=[(USER, 9)])
    made = world.serve(max_ids=2000)
    world.served(made, number)
    return made


BODIES = [
    (RAW, raw_ids(2, 3, 9, 1)),
    (JSON, b'{"ids": [2, 3 ,9,1]}'),
    (JSON, b'{"ids":[2,"1",3.0,null]}'),
    (JSON, b'{"ids":[2],"max_staleness_ms":1e9}'),
    (MSGPACK, msgspec.msgpack.encode({"ids": [2, -3, 9, 1]})),
    (MSGPACK, msgspec.msgpack.encode({"ids": ["2", 1]})),
]


@pytest.mark.parametrize(("kind", "body"), BODIES)
@pytest.mark.parametrize(
    "accept", [RAW, f"{RAW};dtype=float16", JSON, MSGPACK, "application/vnd.apache.arrow.stream", "*/*"]
)
def test_the_fast_path_answers_like_the_normal_path(client, answered, kind, body, accept, connect) -> None:
    connection = connect(client)
    asked = request(body, kind=kind, extra=[f"Accept: {accept}", "Connection: keep-alive"])
    first = connection.exchange(asked)
    assert first[0] == (200 if b"null" not in body or RAW not in accept else first[0])
    assert answered == []
    second, third = connection.exchange(asked), connect(client).exchange(asked)
    assert same_but_for_time(first, second)
    assert same_but_for_time(first, third)
    assert len(answered) == (2 if first[0] == 200 else 0)


def test_the_same_head_with_other_ids_gives_other_rows(client, answered, connect) -> None:
    connection = connect(client)
    connection.exchange(request(raw_ids(1)))
    assert connection.exchange(request(raw_ids(2)))[2][:4] == np.float32(0.1).tobytes()
    assert connection.exchange(request(raw_ids(9)))[2][16:] == b"\3"
    assert connection.exchange(request(raw_ids(5)))[2][16:] == b"\1"
    assert len(answered) == 3


def test_the_fast_path_uses_the_newest_version_and_checks_preconditions(world, client, answered, connect) -> None:
    connection = connect(client)
    plain = request(raw_ids(1))
    fresh = request(b'{"ids":[1]}', kind=JSON, extra=["X-Springtide-Max-Staleness-Ms: 60000"])
    assert connection.exchange(plain)[0] == connection.exchange(fresh)[0] == connection.exchange(fresh)[0] == 200
    number = world.log.publish({(USER, 1): [9, 9, 9, 9]}, complete_until_ms=world.log.meta().created_ms - 3_600_000)
    world.served(client, number)
    status, headers, body = connection.exchange(plain)
    assert (status, headers["x-springtide-version"]) == (200, str(number))
    assert np.frombuffer(body[:16], "<f4").tolist() == [9, 9, 9, 9]
    assert len(answered) == 2
    status, headers, body = connection.exchange(fresh)
    assert (status, msgspec.json.decode(body)["error"]["code"]) == (503, "too_stale")
    assert headers["retry-after"] == "1"
    assert len(answered) == 2
    text = world.log.publish({(USER, hash_string(b"x")): [1, 1, 1, 1]}, strings=[(USER, "x")])
    world.served(client, text)
    assert connection.exchange(plain)[0] == 415
    refused = re.findall(
        r'springtide_requests_rejected_total\{reason="max_staleness"\} (\d+)', client.get("/metrics").text
    )
    assert refused == ["1"]


def test_a_malformed_body_with_a_known_head_is_rejected(client, answered, connect) -> None:
    connection = connect(client)
    connection.exchange(request(b'{"ids":[1,2,3]}', kind=JSON))
    for body, status in ((b'{"ids":[1,2,3}}', 400), (b'{"ids":[[],1,]}', 400), (b'{"ids":[[],1 ]}', 422)):
        assert connection.exchange(request(body, kind=JSON))[0] == status
    assert answered == []
    assert connection.exchange(request(b'{"ids":[3,2,1]}', kind=JSON))[0] == 200
    assert len(answered) == 1
    many = request(raw_ids(*range(2001)))
    assert [connection.exchange(many)[0] for _ in range(2)] == [413, 413]


def test_requests_in_pieces_or_several_at_once_are_answered(client, answered, connect) -> None:
    connection = connect(client)
    asked = request(raw_ids(1, 2))
    expected = connection.exchange(asked)
    for cut in (1, 5, len(asked) - 20, len(asked) - 16, len(asked) - 1):
        connection.send(asked[:cut])
        # once another connection has its response, the piece above has arrived
        client.get("/healthz")
        assert same_but_for_time(expected, connection.exchange(asked[cut:]))
    num_short = len(answered)
    assert num_short == 2  # those cut in the body: the head is known by then
    connection.send(asked * 3 + asked[:30])
    assert all(same_but_for_time(expected, connection.receive()) for _ in range(3))
    assert same_but_for_time(expected, connection.exchange(asked[30:] + asked))
    assert same_but_for_time(expected, connection.receive())
    assert len(answered) == num_short
    assert same_but_for_time(expected, connection.exchange(asked))
    assert len(answered) == num_short + 1


def post_httpx(url: str, kind: str, bodies: list[bytes]) -> list[bytes]:
    with httpx.Client() as client:
        return [client.post(url, content=body, headers={"content-type": kind}).content for body in bodies]


def post_urllib3(url: str, kind: str, bodies: list[bytes]) -> list[bytes]:
    with urllib3.PoolManager() as pool:
        return [pool.request("POST", url, body=body, headers={"content-type": kind}).data for body in bodies]


def post_http_client(url: str, kind: str, bodies: list[bytes]) -> list[bytes]:
    parts, found = urllib.parse.urlsplit(url), []
    connection = http.client.HTTPConnection(parts.netloc)
    for body in bodies:
        connection.request("POST", parts.path, body, {"content-type": kind})
        found.append(connection.getresponse().read())
    connection.close()
    return found


@pytest.mark.parametrize("post", [post_httpx, post_urllib3, post_http_client])
@pytest.mark.parametrize(("kind", "body"), [(RAW, raw_ids(2, 1)), (JSON, b'{"ids":[2,1]}')])
def test_clients_that_send_head_and_body_apart_take_the_fast_path(client, answered, post, kind, body) -> None:
    found = post(f"{client.base_url}/v1/embeddings/user_id", kind, [body] * 20)
    assert found == found[:1] * 20
    assert len(answered) == 19


def test_a_known_head_whose_body_does_not_come_is_answered_in_time(world, answered, connect) -> None:
    world.log.start_epoch()
    client = world.serve(request_timeout_seconds=0.5)
    world.served(client, world.log.publish({(USER, 1): [1, 2, 3, 4]}))
    asked = request(raw_ids(1))
    known = connect(client)
    assert [known.exchange(asked)[0] for _ in range(2)] == [200, 200]
    known.send(asked[:-1])
    assert error_code(known.receive(), 408) == "request_timeout"
    assert known.is_closed()
    assert len(answered) == 1


def test_unusual_heads_are_not_remembered(client, answered, connect) -> None:
    body = raw_ids(1)
    for extra in (["Expect: 100-continue"], ["Connection: close"], ["Connection: keep-alive, close"]):
        for _ in range(2):
            connection = connect(client)
            connection.send(request(body, extra=extra))
            if extra == ["Expect: 100-continue"]:
                connection.socket.settimeout(20)
                while b"100 Continue\r\n\r\n" not in connection.buffer:
                    connection._more()
                connection.buffer = connection.buffer.partition(b"100 Continue\r\n\r\n")[2]
            assert connection.receive()[0] == 200
    chunked = b"POST /v1/embeddings/user_id HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n" % RAW.encode()
    chunked += b"Transfer-Encoding: chunked\r\n\r\n8\r\n" + body + b"\r\n0\r\n\r\n"
    connection = connect(client)
    assert [connection.exchange(chunked)[0] for _ in range(2)] == [200, 200]
    old = request(body).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert [connect(client).exchange(old)[0] for _ in range(2)] == [200, 200]
    assert answered == []


def test_heads_that_the_parser_ends_elsewhere_are_not_remembered(client, answered, connect) -> None:
    # whatever a lenient parser accepts between head and body, heads end where it has ended them
    for asked in (request(raw_ids(1)).replace(b"\r\n", b"\n"), b"\r\n\r\n" + request(raw_ids(1))):
        for _ in range(2):
            connection = connect(client)
            connection.send(asked)
            with contextlib.suppress(AssertionError):
                assert connection.receive()[0] in (200, 400)
    assert answered == []


def test_a_head_with_another_token_is_not_known(world, monkeypatch, answered, connect) -> None:
    monkeypatch.setenv("SPRINGTIDE_TOKENS", "read=reader-secret")
    world.log.start_epoch()
    client = world.serve()
    headers = ["Authorization: Bearer reader-secret"]
    reader = connect(client)
    while reader.exchange(request(raw_ids(1), extra=headers))[0] == 503:
        pass
    assert reader.exchange(request(raw_ids(1), extra=headers))[0] == 200
    assert len(answered) == 1
    assert reader.exchange(request(raw_ids(1)))[0] == 401
    assert reader.exchange(request(raw_ids(1), extra=["Authorization: Bearer reader-secreT"]))[0] == 401
    assert len(answered) == 1


def test_known_heads_are_limited_in_number_and_length(client, answered, monkeypatch, connect) -> None:
    monkeypatch.setattr(fast_path, "MAX_HEADS", 2)
    connection = connect(client)
    for number in range(5):
        connection.exchange(request(raw_ids(1), extra=[f"X-Number: {number}"]))
    long = request(raw_ids(1), extra=[f"X-Long: {'x' * 3000}"])
    assert [connection.exchange(long)[0] for _ in range(2)] == [200, 200]
    assert answered == []
    assert connection.exchange(request(raw_ids(1), extra=["X-Number: 4"]))[0] == 200
    assert len(answered) == 1


def test_fast_path_responses_are_counted(client, answered, connect) -> None:
    def counted(name: str) -> float:
        return sum(float(n) for n in re.findall(rf"^{re.escape(name)}[^ ]* (\S+)$", client.get("/metrics").text, re.M))

    answers, rows = 'springtide_http_requests_total{route="/v1/embeddings', "springtide_lookup_rows_total"
    seconds = 'springtide_http_request_duration_seconds_count{route="/v1/embeddings'
    before = [counted(name) for name in (answers, rows, seconds)]
    connection = connect(client)
    for _ in range(5):
        connection.exchange(request(raw_ids(1, 3, 9)))
    assert len(answered) == 4
    assert [counted(name) for name in (answers, rows, seconds)] == [before[0] + 5, before[1] + 15, before[2] + 5]
    assert 'springtide_lookup_rows_total{status="forgotten"} 5' in client.get("/metrics").text


def test_keep_alive_ends_for_idle_connections_only() -> None:
    closed, armed = [], []

    class Loop:
        now = 0.0

        def time(self):
            return self.now

        def call_later(self, seconds, call):
            armed.append((self.now + seconds, call))
            return object()

    class Transport:
        def is_closing(self):
            return bool(closed)

        def close(self):
            closed.append(loop.now)

    loop = Loop()
    protocol = connection.HttpConnection.__new__(connection.HttpConnection)
    protocol.loop, protocol.transport, protocol.timeout_keep_alive = loop, Transport(), 30
    protocol._responded_at, protocol._num_missing = 20.0, 0
    loop.now = 30.0
    protocol.timeout_keep_alive_handler()
    assert not closed
    (again, call), *_ = armed
    assert again == 50.0
    loop.now, protocol._num_missing = again, 8  # a request has begun, which has a time limit of its own
    call()
    assert not closed
    (again, call) = armed[-1]
    assert again == 80.0
    loop.now, protocol._num_missing = again, 0
    call()
    assert closed == [80.0]
