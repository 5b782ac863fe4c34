"""The servers of all parts: requests to several of them at once, over connections that stay open.

All requests are sent before the first response is read, so one thread keeps every server busy.
"""

import json
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.rows.hash_range import HashRange

# how long a server may take to answer, and to be connected to
TIMEOUT_SECONDS = 5.0
MAX_IDLE_CONNECTIONS = 64  # to one server
# one that did not answer in time is not asked for so long: else every thread would wait for it
PAUSE_SECONDS = 1.0

# (range, outcome, seconds): outcome is ok, version or failed
Observer = Callable[[str, str, float], None]


MAX_HEAD_BYTES = 65_536
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
CLOSES = re.compile(rb"\r\nconnection:[^\r]*close", re.IGNORECASE)
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")


class ResponseError(OSError):
    """The response is none of HTTP/1.1 with a Content-Length, or has ended early."""


class ResponseHead(NamedTuple):
    """The head of a response, as far as its body and its connection need it."""

    status: int
    body_bytes: int
    closes: bool

    @staticmethod
    def of(head: bytes) -> "ResponseHead":
        """Parse a head with its last line's end; ResponseError if it is none of HTTP/1.1 with a Content-Length."""
        status, length = STATUS_LINE.match(head), CONTENT_LENGTH.search(head)
        if status is None or length is None:
            raise ResponseError("the response has no Content-Length: is it a Springtide server?")
        return ResponseHead(int(status[1]), int(length[1]), CLOSES.search(head) is not None)


class PartResponse(NamedTuple):
    """A server's response."""

    status: int
    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The headers by lower-case name."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}


class PartConnection:
    """One HTTP/1.1 connection, for one request at a time: it is one write, a response is read as its bytes arrive.

    Knows as much of HTTP as such servers use. `http.client` takes 100 µs of a request and its response, this a quarter.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        """OSError when the server cannot be reached."""
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname is not None
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        self._socket = socket.create_connection((parts.hostname, port), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_tls:
            self._socket = _tls_context().wrap_socket(self._socket, server_hostname=parts.hostname)
        self._host, self._path = parts.netloc.rpartition("@")[2], parts.path
        self.is_reusable = True  # after the last response

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request; OSError when the connection is gone."""
        self._socket.sendall(encode_request(method, self._host, self._path + path, headers, body))

    def receive(self) -> PartResponse:
        """Return the response; OSError when it does not arrive whole, ConnectionError when not at all."""
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            received = self._socket.recv(65_536)
            if not received:
                if not data:
                    raise ConnectionResetError("the connection was closed")
                raise ResponseError("the response broke off")
            data += received
            if len(data) > MAX_HEAD_BYTES and b"\r\n\r\n" not in data:
                raise ResponseError("the response's head is too long")
        lines, body = data[: end + 2], data[end + 4 :]
        head = ResponseHead.of(lines)
        missing = head.body_bytes - len(body)
        if missing > 0:
            body += self._read(missing)
        elif missing < 0:
            raise ResponseError("the response is longer than it says")
        self.is_reusable = not head.closes
        return PartResponse(head.status, lines, body)

    def _read(self, num_bytes: int) -> bytes:
        buffer = bytearray(num_bytes)
        left = memoryview(buffer)
        while left:
            received = self._socket.recv_into(left)
            if not received:
                raise ResponseError("the response broke off")
            left = left[received:]
        return bytes(buffer)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def encode_request(method: str, host: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes of a request. Content-Length is its last header: see app/serving/lookup/fast_path.py."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


@cache
def _tls_context() -> ssl.SSLContext:
    """The context of all connections: loading the certificates of the system takes a while."""
    return ssl.create_default_context()


class _Exchange(NamedTuple):
    part: int  # from 0
    connection: PartConnection | None
    is_reused: bool
    started: float


class PartServers:
    """Knows the address of each part, in the order of their ranges. Thread-safe; usable in forked processes too."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        observe: Observer = lambda range, outcome, seconds: None,
    ) -> None:
        """ValueError for a URL that is not one of a server."""
        self.urls = tuple(check_url(url) for url in urls)
        self.timeout_seconds = timeout_seconds
        self._observe = observe
        self._headers = {"Content-Type": "application/octet-stream"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._is_closed = False
        self._forget_connections()

    def _forget_connections(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[list[PartConnection]] = [[] for _ in self.urls]
        self._paused: list[tuple[float, str]] = [(0.0, "")] * len(self.urls)  # until when, and why
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self.urls)

    def range_of(self, index: int) -> HashRange:
        """Return the range of keys that the server at `urls[index]` holds."""
        return HashRange(index + 1, len(self.urls))

    def name_of(self, index: int) -> str:
        """Return how errors name a part."""
        return f"part {self.range_of(index)} at {self.urls[index]}"

    def reason_of_pause(self, index: int) -> str:
        """Return why a part is not asked for a moment: it did not answer in time; empty where it may be asked."""
        until, why = self._paused[index]
        return why if time.monotonic() < until else ""

    def error_of(self, index: int, status: int, body: bytes | memoryview, started: float) -> PartError | None:
        """Report a part's response to a request that was sent at `started` (perf_counter), and return its error.

        None for 200, VersionsDifferError where the part does not serve the demanded version, else PartError.
        """
        error = None if status == 200 else self._refusal(index, status, bytes(body))
        outcome = "ok" if error is None else "version" if isinstance(error, VersionsDifferError) else "failed"
        self.note(index, outcome, started)
        return error

    def encode_post(self, index: int, path: str, body: bytes) -> bytes:
        """Return the bytes of a request to a part, for an event loop, which does not wait as `post_all` does."""
        url = urllib.parse.urlsplit(self.urls[index])
        return encode_request("POST", url.netloc.rpartition("@")[2], url.path + path, self._headers, body)

    def post_all(
        self, requests: Mapping[int, tuple[str, bytes]], meanwhile: Callable[[], object] = lambda: None
    ) -> dict[int, bytes]:
        """Send a path and a body to several parts, call `meanwhile`, and return the bodies of their responses.

        VersionsDifferError where a part does not serve the demanded version, PartError where it does not answer or
        refuses. Each names the part.
        """
        exchanges: list[_Exchange] = []
        bodies: dict[int, bytes] = {}
        try:
            for index, (path, body) in requests.items():
                exchanges.append(self._send(index, "POST", path, body, self._headers))
            meanwhile()
            while exchanges:
                exchange = exchanges.pop(0)
                response = self._receive(exchange, "POST", *requests[exchange.part], self._headers)
                if error := self.error_of(exchange.part, response.status, response.body, exchange.started):
                    raise error
                bodies[exchange.part] = response.body
        finally:
            for left in exchanges:  # their responses would be taken for those of the next requests
                if left.connection is not None:
                    left.connection.close()
        return bodies

    def get(self, index: int, path: str, headers: Mapping[str, str]) -> PartResponse:
        """Return a part's response to a GET, whatever its status; PartError where there is none."""
        sent = {**headers, **{name: value for name, value in self._headers.items() if name == "Authorization"}}
        exchange = self._send(index, "GET", path, b"", sent)
        response = self._receive(exchange, "GET", path, b"", sent)
        self.note(exchange.part, "ok", exchange.started)
        return response

    def close(self) -> None:
        """Close the connections that are idle, and keep none from now on."""
        with self._lock:
            self._is_closed = True
            for connections in self._idle:
                while connections:
                    connections.pop().close()

    def _send(
        self, index: int, method: str, path: str, body: bytes, headers: Mapping[str, str], *, fresh: bool = False
    ) -> _Exchange:
        if os.getpid() != self._pid:  # a parent process uses the same sockets, and would read our responses
            self._forget_connections()
        if why := self.reason_of_pause(index):
            raise PartError(why)
        started = time.perf_counter()
        with self._lock:
            idle = self._idle[index]
            connection = None if fresh or not idle else idle.pop()
        exchange = _Exchange(index, connection, connection is not None, started)
        try:
            if connection is None:
                connection = PartConnection(self.urls[index], self.timeout_seconds)
            connection.send(method, path, body, headers)
        except OSError as error:
            if connection is not None:
                connection.close()
            if exchange.is_reused:  # the server had closed it
                return self._send(index, method, path, body, headers, fresh=True)
            raise self._failed(exchange, error) from error
        return exchange._replace(connection=connection)

    def _receive(
        self, exchange: _Exchange, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> PartResponse:
        index, connection = exchange.part, exchange.connection
        assert connection is not None
        try:
            response = connection.receive()
        except OSError as error:
            connection.close()
            if exchange.is_reused and isinstance(error, ConnectionError):
                again = self._send(index, method, path, body, headers, fresh=True)
                return self._receive(again, method, path, body, headers)
            raise self._failed(exchange, error) from error
        with self._lock:
            if connection.is_reusable and not self._is_closed and len(self._idle[index]) < MAX_IDLE_CONNECTIONS:
                self._idle[index].append(connection)
                return response
        connection.close()
        return response

    def _failed(self, exchange: _Exchange, error: Exception) -> PartError:
        self.note(exchange.part, "failed", exchange.started)
        reason = str(error) or type(error).__name__
        text = f"{self.name_of(exchange.part)} does not answer ({reason}): is it running?"
        if isinstance(error, TimeoutError):
            self._paused[exchange.part] = (time.monotonic() + PAUSE_SECONDS, text)
        return PartError(text)

    def note(self, index: int, outcome: str, started: float) -> None:
        """Report how a request ended that was sent at `started`: the outcome is ok, version or failed."""
        self._observe(str(self.range_of(index)), outcome, time.perf_counter() - started)

    def _refusal(self, index: int, status: int, body: bytes) -> PartError:
        code, message = "", f"it responded {status}"
        try:
            error = json.loads(body)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            pass  # not one of our servers: the status says what there is to say
        differs = status == 410 or code in ("version_not_reached", "versions_differ")
        return (VersionsDifferError if differs else PartError)(f"{self.name_of(index)}: {message}")


def check_url(url: str) -> str:
    """Return a server's URL without its last slash; ValueError for anything else."""
    parts = urllib.parse.urlsplit(url)
    try:
        is_url = parts.scheme in ("http", "https") and parts.hostname and not parts.query and parts.port != 0
    except ValueError:  # a port that is no number
        is_url = False
    if not is_url:
        raise ValueError(f"{url!r} is not the URL of a server: give http://host:port")
    return url.rstrip("/")
