"""The servers of all parts: requests to several of them at once, over connections that stay open.

All requests are sent before the first response is read, so one thread keeps every server busy.
"""

import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from springtide_client.errors import PartError, VersionsDifferError
from springtide_client.parts.part_connection import PartConnection, PartResponse, encode_request
from springtide_client.rows.hash_range import HashRange

# how long a server may take to answer, and to be connected to
TIMEOUT_SECONDS = 5.0
MAX_IDLE_CONNECTIONS = 64  # to one server
# one that did not answer in time is not asked for so long: else every thread would wait for it
PAUSE_SECONDS = 1.0

# (range, outcome, seconds): outcome is ok, version or failed
Observer = Callable[[str, str, float], None]


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

    def encode_post(self, index: int, path: str, body: bytes) -> bytes:
        """Return the bytes of a request to a part, for who sends it by other means than `post_all`."""
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
                if response.status != 200:
                    error = self._refusal(exchange.part, response)
                    outcome = "version" if isinstance(error, VersionsDifferError) else "failed"
                    self._note(exchange, outcome)
                    raise error
                self._note(exchange, "ok")
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
        self._note(exchange, "ok")
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
        until, why = self._paused[index]
        if time.monotonic() < until:
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
        self._note(exchange, "failed")
        reason = str(error) or type(error).__name__
        text = f"{self.name_of(exchange.part)} does not answer ({reason}): is it running?"
        if isinstance(error, TimeoutError):
            self._paused[exchange.part] = (time.monotonic() + PAUSE_SECONDS, text)
        return PartError(text)

    def note(self, index: int, outcome: str, seconds: float) -> None:
        """Report a part's response: the outcome is ok, version or failed."""
        self._observe(str(self.range_of(index)), outcome, seconds)

    def _note(self, exchange: _Exchange, outcome: str) -> None:
        self.note(exchange.part, outcome, time.perf_counter() - exchange.started)

    def _refusal(self, index: int, response: PartResponse) -> PartError:
        code, message = "", f"it responded {response.status}"
        try:
            error = json.loads(response.body)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            pass  # not one of our servers: the status says what there is to say
        differs = response.status == 410 or code in ("version_not_reached", "versions_differ")
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
