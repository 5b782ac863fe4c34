"""Raw bytes to a server and its responses, without an HTTP library in between."""

import socket

import msgspec

RAW, JSON, MSGPACK = "application/octet-stream", "application/json", "application/msgpack"
ARROW = "application/vnd.apache.arrow.stream"

RawResponse = tuple[int, dict[str, str], bytes]


class Connection:
    """One connection. Responses are split by Content-Length, and not checked further."""

    def __init__(self, client) -> None:
        self.socket = socket.create_connection((client.base_url.host, client.base_url.port), timeout=300)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def exchange(self, content: bytes) -> RawResponse:
        self.send(content)
        return self.receive()

    def receive(self) -> RawResponse:
        """The next response: status, headers, body."""
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines]
        headers = dict(pairs)
        assert len(headers) == len(pairs)
        while len(self.buffer) < int(headers["content-length"]):
            self._more()
        body, self.buffer = (
            self.buffer[: int(headers["content-length"])],
            self.buffer[int(headers["content-length"]) :],
        )
        return int(status.split()[1]), headers, body

    def is_closed(self) -> bool:
        """Return True once the server has closed the connection."""
        try:
            return self.buffer == b"" and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _more(self) -> None:
        received = self.socket.recv(65_536)
        assert received, "the server closed the connection"
        self.buffer += received


def request(body: bytes, *, kind=RAW, feature="user_id", path=None, method="POST", extra=()) -> bytes:
    lines = [f"{method} {path or f'/v1/embeddings/{feature}'} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}"]
    lines += [*extra, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def get(path: str | bytes, *extra: str) -> bytes:
    path = path.encode("latin-1") if isinstance(path, str) else path
    lines = "".join(f"{line}\r\n" for line in ("Host: localhost", *extra)).encode("latin-1")
    return b"GET " + path + b" HTTP/1.1\r\n" + lines + b"\r\n"


def error_code(answer: RawResponse, *statuses: int) -> str:
    """The code of an error response, which must have one of the statuses and a hint."""
    status, headers, body = answer
    assert status in statuses, (status, body[:500])
    assert headers["content-type"] == "application/json"
    error = msgspec.json.decode(body)["error"]
    assert error["message"]
    assert error["hint"], error
    return error["code"]
