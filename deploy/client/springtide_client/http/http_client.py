"""A Springtide server as a client sees it: requests over http.client, refusals as errors with their hint."""

import contextlib
import http.client
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import msgspec

from springtide_client.errors import GapError, LogError

TIMEOUT_SECONDS = 30.0  # for an answer, and between its pieces
CONNECT_SECONDS = 5.0


class NotReadyError(LogError):
    """The server is up but serves no version yet."""


class HttpResponse:
    """An answer whose body is still to be read; a context manager that closes its connection."""

    def __init__(
        self, connection: http.client.HTTPConnection, connected: socket.socket, let_go: Callable[[], None]
    ) -> None:
        """`let_go` closes the connection."""
        self._socket, self._let_go = connected, let_go
        self.response = connection.getresponse()

    def __enter__(self) -> "HttpResponse":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def abort(self) -> None:
        """End the connection under a thread that waits for more."""
        _shut_down(self._socket)

    def close(self) -> None:
        """Let go of the connection."""
        self.response.close()
        self._let_go()


class HttpClient:
    """Opens requests below one base URL, with a token where there is one. `close` ends those that are under way."""

    def __init__(self, url: str, *, token: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is no server: give http://host:port")
        self.url = url.rstrip("/")
        self._is_https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_seconds = timeout_seconds
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()  # http.client forgets one where the server closes after its answer

    def close(self) -> None:
        """End every request under way, whichever thread waits for it, and open no more."""
        self._closed.set()
        with self._lock:
            for connected in self._sockets:
                _shut_down(connected)

    @property
    def is_closed(self) -> bool:
        """Whether requests are refused from now on."""
        return self._closed.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep; LogError once this is closed."""
        if self._closed.wait(seconds):
            raise LogError(f"{self.url} is no longer asked: this was closed")

    def open(self, path: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """A 2xx answer.

        GapError for 410, NotReadyError for 503, LogError for any other refusal and for a server that cannot be reached.
        """
        kind = http.client.HTTPSConnection if self._is_https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=min(CONNECT_SECONDS, self._timeout_seconds))
        connected: socket.socket | None = None

        def let_go() -> None:
            connection.close()
            with self._lock:
                self._sockets.discard(connected)

        try:
            connection.connect()
            connected = connection.sock
            connected.settimeout(self._timeout_seconds)
            with self._lock:
                self._sockets.add(connected)
            self.wait(0)  # whoever closed before saw no socket to end
            connection.request("GET", self._prefix + path, headers={**self._headers, **(headers or {})})
            answer = HttpResponse(connection, connected, let_go)
            if 200 <= answer.response.status < 300:
                return answer
            raise _refusal(self.url + path, answer.response)
        except (OSError, http.client.HTTPException) as error:
            let_go()
            self.wait(0)
            raise LogError(f"{self.url} cannot be reached ({error or type(error).__name__}): is it running?") from error
        except BaseException:
            let_go()
            raise

    def get(self, path: str) -> bytes:
        """A route's answer, whole."""
        with self.open(path) as answer:
            try:
                return answer.response.read()
            except (OSError, http.client.HTTPException) as error:
                raise LogError(f"{self.url}{path} broke off: {error or type(error).__name__}") from error

    def get_json(self, path: str) -> dict[str, Any]:
        """A route's document."""
        try:
            return msgspec.json.decode(self.get(path), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise LogError(f"{self.url}{path} gave no readable answer, is it a Springtide server? {error}") from None


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _refusal(where: str, response: http.client.HTTPResponse) -> LogError:
    try:
        error = msgspec.json.decode(response.read(65_536))["error"]
        text = f"{where}: {error['message']}" + (f" ({error['hint']})" if error.get("hint") else "")
    except (msgspec.DecodeError, KeyError, TypeError):
        text = f"{where} answered {response.status} {response.reason}"
    kinds: dict[int, type[LogError]] = {410: GapError, 503: NotReadyError}
    return kinds.get(response.status, LogError)(text)
