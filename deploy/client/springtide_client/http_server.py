"""A Springtide server as a client sees it: requests over http.client, refusals as errors with their hint."""

import contextlib
import http.client
import socket
import urllib.parse
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgspec

from springtide_client.errors import GapError, LogError

TIMEOUT_SECONDS = 30.0


class NotReadyError(LogError):
    """The server is up but serves no version yet."""


class Answer:
    """An answer whose body is still to be read; a context manager that closes its connection."""

    def __init__(self, connection: http.client.HTTPConnection, socket: socket.socket) -> None:
        self._connection, self._socket = connection, socket
        self.response = connection.getresponse()

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def abort(self) -> None:
        """End the connection under a thread that waits for more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection."""
        self.response.close()
        self._connection.close()


class HttpServer:
    """Opens requests below one base URL, with a token where there is one."""

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

    def open(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """A 2xx answer.

        GapError for 410, NotReadyError for 503, LogError for any other refusal and for a server that cannot be reached.
        """
        kind = http.client.HTTPSConnection if self._is_https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_seconds)
        try:
            connection.connect()
            connected = connection.sock  # http.client forgets it where the server closes after its answer
            connection.request("GET", self._prefix + path, headers={**self._headers, **(headers or {})})
            answer = Answer(connection, connected)
            if 200 <= answer.response.status < 300:
                return answer
            raise _refusal(self.url + path, answer.response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise LogError(f"{self.url} cannot be reached ({error or type(error).__name__}): is it running?") from error
        except BaseException:
            connection.close()
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


def _refusal(where: str, response: http.client.HTTPResponse) -> LogError:
    try:
        error = msgspec.json.decode(response.read(65_536))["error"]
        text = f"{where}: {error['message']}" + (f" ({error['hint']})" if error.get("hint") else "")
    except (msgspec.DecodeError, KeyError, TypeError):
        text = f"{where} answered {response.status} {response.reason}"
    kinds: dict[int, type[LogError]] = {410: GapError, 503: NotReadyError}
    return kinds.get(response.status, LogError)(text)
