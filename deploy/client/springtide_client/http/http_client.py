"""GET requests to one Springtide server, over urllib3. Refusals become errors with the server's hint."""

import contextlib
import http.client
import ipaddress
import socket
import threading
import urllib.parse
import urllib.request
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ProxyError

from springtide_client.errors import GapError, LogError
from springtide_client.system.json_text import decode_json

TIMEOUT_SECONDS = 30.0  # for a response, and between its pieces
CONNECT_SECONDS = 5.0
MAX_ERROR_BYTES = 65_536
MAX_NESTED_ERRORS = 5  # of urllib3, one inside the other


class NotReadyError(LogError):
    """The server is up but serves no version yet."""


class HttpClient:
    """Sends requests below one base URL, with a token if given. Thread-safe; `close` ends the requests under way.

    Proxies are taken from the environment (http_proxy, https_proxy, no_proxy), but never for loopback addresses.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the URL of a server: give http://host:port")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, timeout_seconds), read=timeout_seconds)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._pools = _pool_manager(_proxy_for(parts.scheme, parts.hostname, parts.port))
        self._pools.pool_classes_by_scheme = self._pool_classes()

    def close(self) -> None:
        """End every request under way, whichever thread waits for it, and send no more."""
        self._closed.set()
        with self._lock:
            for connected in self._sockets:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
        self._pools.clear()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._closed.is_set()

    @property
    def num_connections(self) -> int:
        """The number of open connections."""
        with self._lock:
            return sum(connected.fileno() != -1 for connected in self._sockets)

    def wait(self, seconds: float) -> None:
        """Sleep; LogError once this client is closed."""
        if self._closed.wait(seconds):
            raise LogError(f"the client of {self.url} was closed")

    def open(self, path: str, headers: Mapping[str, str] | None = None) -> urllib3.BaseHTTPResponse:
        """Send a request and return the 2xx response, whose body is still to be read; close it afterwards.

        GapError for 410, NotReadyError for 503, LogError for any other refusal and for a server that cannot be reached.
        """
        self.wait(0)
        try:
            response = self._pools.request(
                "GET",
                self.url + path,
                headers={**self._headers, **(headers or {})},
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            self.wait(0)
            raise LogError(f"{self.url} cannot be reached ({reason_of(error)}): is it running?") from error
        if 200 <= response.status < 300:
            return response
        with response:
            raise _refusal(self.url + path, response)

    def get(self, path: str) -> bytes:
        """Return the whole body of a route's response; raises like `open`."""
        with self.open(path) as response:
            try:
                return response.read()
            except (HTTPError, OSError) as error:
                raise LogError(f"the response of {self.url}{path} broke off: {reason_of(error)}") from error

    def get_json(self, path: str) -> dict[str, Any]:
        """Return a route's JSON document; raises like `open`."""
        try:
            document: dict[str, Any] = decode_json(self.get(path), dict[str, Any])
            return document
        except msgspec.MsgspecError as error:
            raise LogError(f"{self.url}{path} did not return JSON: is it a Springtide server? {error}") from None

    def _pool_classes(self) -> dict[str, type[urllib3.HTTPConnectionPool]]:
        """Return pools whose connections `close` can shut down, even while they wait for a response's head."""
        track = self._track

        class TrackedConnection(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                track(self.sock)

        class TrackedTlsConnection(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                track(self.sock)

        class TrackedPool(urllib3.HTTPConnectionPool):
            ConnectionCls = TrackedConnection

        class TrackedTlsPool(urllib3.HTTPSConnectionPool):
            ConnectionCls = TrackedTlsConnection

        return {"http": TrackedPool, "https": TrackedTlsPool}

    def _track(self, connected: socket.socket | None) -> None:
        assert connected is not None
        with self._lock:
            self._sockets.add(connected)
        self.wait(0)  # a `close` just before this did not see the socket


def reason_of(error: Exception) -> str:
    """Return what went wrong below urllib3, whose own texts name connection objects."""
    inner: Exception = error
    for _ in range(MAX_NESTED_ERRORS):
        causes = [each for each in (inner.__cause__, *inner.args) if isinstance(each, Exception)]
        if not causes:
            break
        inner = causes[0]
        if isinstance(inner, (OSError, http.client.HTTPException)) and not isinstance(inner, HTTPError):
            break
    reason = str(inner) or type(inner).__name__
    return f"through the environment's proxy: {reason}" if isinstance(error, ProxyError) else reason


def _pool_manager(proxy_url: str | None) -> urllib3.PoolManager:
    if proxy_url is None:
        return urllib3.PoolManager()
    user, separator, _ = urllib.parse.urlsplit(proxy_url).netloc.rpartition("@")
    headers = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(user)) if separator else None
    return urllib3.ProxyManager(proxy_url, proxy_headers=headers)


def _proxy_for(scheme: str, host: str, port: int | None) -> str | None:
    """Return the proxy that the environment names for a server; None for one on this host."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return None
    if host == "localhost" or urllib.request.proxy_bypass(host if port is None else f"{host}:{port}"):
        return None
    proxy_url = urllib.request.getproxies().get(scheme)
    return proxy_url if proxy_url is None or "://" in proxy_url else f"http://{proxy_url}"


def _refusal(url: str, response: urllib3.BaseHTTPResponse) -> LogError:
    """Return the error that a response other than 2xx stands for."""
    try:
        error = decode_json(response.read(MAX_ERROR_BYTES))["error"]
        text = f"{url}: {error['message']}" + (f" ({error['hint']})" if error.get("hint") else "")
    except (msgspec.DecodeError, KeyError, TypeError, HTTPError, OSError):
        text = f"{url} responded {response.status} {response.reason}"
    errors: dict[int, type[LogError]] = {410: GapError, 503: NotReadyError}
    return errors.get(response.status, LogError)(text)
