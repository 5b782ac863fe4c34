"""One HTTP/1.1 connection to the server of a part: a request is one write, a response is read as its bytes arrive.

Knows as much of HTTP as such servers use. `http.client` takes 100 µs of a request and its response, this a quarter.
"""

import re
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

MAX_HEAD_BYTES = 65_536
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE)
CLOSES = re.compile(rb"\r\nconnection:[^\r]*close", re.IGNORECASE)
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")


class ResponseError(OSError):
    """The response is none of HTTP/1.1 with a Content-Length, or has ended early."""


class PartResponse(NamedTuple):
    """What a server has responded."""

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
    """Not thread-safe: for one request at a time."""

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
        head, body = data[: end + 2], data[end + 4 :]
        status, length = STATUS_LINE.match(head), CONTENT_LENGTH.search(head)
        if status is None or length is None:
            raise ResponseError("the response has no Content-Length: is it a Springtide server?")
        missing = int(length[1]) - len(body)
        if missing > 0:
            body += self._read(missing)
        elif missing < 0:
            raise ResponseError("the response is longer than it says")
        self.is_reusable = CLOSES.search(head) is None
        return PartResponse(int(status[1]), head, body)

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
