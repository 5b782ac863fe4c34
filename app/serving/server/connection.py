"""One HTTP/1.1 connection: uvicorn's protocol with the fast path, limits on heads, and a time limit for clients."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from springtide.app.serving.http.errors import ApiError, bad_request, head_too_large, request_timeout, too_many_requests
from springtide.app.serving.http.fast_path import LATER, MAX_REQUEST_BYTES, REQUEST_PREFIX, FastPath, Response
from springtide.app.serving.http.middleware import HttpMiddleware
from springtide.app.serving.server.drain import ConnectionDrain

CHECK_INTERVAL_SECONDS = 1.0


class ClientTimeouts:
    """The time limit of slow clients: a request must arrive whole, and a response must be read on, within it.

    Checked once a second for all connections, so that it costs a request nothing. For the event loop's thread alone.
    """

    __slots__ = ("_unsent", "waiting_since")

    def __init__(self) -> None:
        self.waiting_since: float | None = None  # for the rest of a request; None between requests
        self._unsent: tuple[int, float] | None = None  # bytes that do not go out, since when

    def expired(
        self, now: float, seconds: float, *, reads_paused: bool, num_unsent_bytes: int
    ) -> Literal["request", "response"] | None:
        """Name the delay of a client longer than `seconds`: the rest of its request, or reading the response."""
        if self.waiting_since is not None:
            if reads_paused:  # the server itself does not read at the moment
                self.waiting_since = now
            elif now - self.waiting_since > seconds:
                return "request"
        if num_unsent_bytes == 0:
            self._unsent = None
        elif self._unsent is None or self._unsent[0] != num_unsent_bytes:
            self._unsent = (num_unsent_bytes, now)
        elif now - self._unsent[1] > seconds:
            return "response"
        return None


class TimedConnection(Protocol):
    """A connection with a time limit for its client."""

    def enforce_timeouts(self, now: float, seconds: float) -> None:
        """Close the connection if its client has kept the server waiting for longer than `seconds`."""


async def enforce_client_timeouts(connections: Callable[[], Iterable[TimedConnection]], seconds: float) -> None:
    """Check all connections again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(CHECK_INTERVAL_SECONDS, seconds / 4))
        for connection in list(connections()):
            connection.enforce_timeouts(loop.time(), seconds)


MAX_FRAMING_BYTES = 65_536
MAX_HELD_BYTES = 65_536  # of requests that arrive before the response to one before them


class ConnectionParts(NamedTuple):
    """The objects that every connection of a process uses."""

    middleware: HttpMiddleware
    fast_path: FastPath
    drain: ConnectionDrain
    max_connections: int


class ConnectionConfig(uvicorn.Config):
    """uvicorn's settings, and the parts that its connections use."""

    def __init__(self, parts: ConnectionParts, **settings: Any) -> None:
        super().__init__(parts.middleware, http=HttpConnection, **settings)
        self.parts = parts


class HttpConnection(HttpToolsProtocol):
    """Between two requests, the bytes of one whole request may take the fast path; all others take uvicorn's way.

    Most clients send head and body apart: where the head is known, its body is waited for.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        parts = cast(ConnectionConfig, self.config).parts
        self._middleware, self._fast_path, self._drain = parts.middleware, parts.fast_path, parts.drain
        self._max_connections = parts.max_connections
        self._in_head = False
        self._framing_bytes = self._body_bytes = self._head_bytes = 0  # of the message that the parser reads
        self._is_between = True  # the parser has seen the end of every request that began
        self._data = bytearray()  # all that has arrived of a request that the fast path could come to know
        self._begun: list[bytes] = []  # the first pieces of a request with a known head
        self._num_missing = 0  # bytes of the same
        self._awaited: bytes | None = None  # a whole request, whose response the fast path has not yet
        self._held: list[bytes] = []  # what has arrived since
        self._responded_at = 0.0
        self._timeouts = ClientTimeouts()
        self._default_headers: tuple[object, str] = (None, "")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timeouts.waiting_since = self.loop.time()
        if len(self.connections) > self._max_connections:
            self._reject(too_many_requests("connections", self._max_connections))

    def data_received(self, data: bytes) -> None:
        if self._awaited is not None:
            self._held.append(data)
            if sum(map(len, self._held)) > MAX_HELD_BYTES:
                self.flow.pause_reading()
            return
        if self._num_missing:
            self._begun.append(data)
            self._num_missing -= len(data)
            if self._num_missing > 0:
                return
            data, self._begun, self._num_missing = b"".join(self._begun), [], 0
        if self._is_between and data.startswith(REQUEST_PREFIX) and not self._drain.started and self._is_idle():
            response = self._fast_path.respond(data, self._respond_later)
            if isinstance(response, tuple):
                self._send(*response)
                return
            if response is LATER:
                self._awaited = data
                self._timeouts.waiting_since = None
                self._responded_at = self.loop.time()
                return
            if isinstance(response, int):
                self._begun, self._num_missing = [data], response
                self._timeouts.waiting_since = self.loop.time()
                return
            self._data = bytearray(data)
        elif self._data:
            self._data += data
            if len(self._data) > MAX_REQUEST_BYTES:
                self._data.clear()
        self._take_normal_path(data)

    def _respond_later(self, response: Response | None) -> None:
        """Send the response that the fast path has found now, or take the normal path."""
        data, self._awaited = self._awaited, None
        held, self._held = self._held, []
        if data is None or self.transport.is_closing():
            return
        if response is not None:
            self._send(*response)
        else:
            self._data = bytearray(data)
            self._take_normal_path(data)
        if held:
            self.flow.resume_reading()
            self.data_received(b"".join(held))

    def _take_normal_path(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if not self._is_between and self._framing_bytes > MAX_FRAMING_BYTES + self._body_bytes:
            self._reject(head_too_large(MAX_FRAMING_BYTES))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_between, self._in_head = False, True
        self._body_bytes = self._head_bytes = 0
        self._timeouts.waiting_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer after the body is not a header: the request was authorized by its head
            super().on_header(name, value)
            self._head_bytes += len(name) + len(value) + len(": \r\n")

    def on_headers_complete(self) -> None:
        if self._head_bytes + len(self.url) > MAX_FRAMING_BYTES:
            raise ValueError("the head is too long")  # the parser stops, and calls send_400_response
        super().on_headers_complete()
        self._in_head = False
        if self._drain.started:
            self.close_after_response()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        # a chunk of one byte has five bytes of framing: that is not an attack yet
        self._body_bytes += 8 * len(body)

    def on_message_complete(self) -> None:
        if self._data:
            cast(dict[str, Any], self.scope)["springtide.data"] = bytes(self._data)
            self._data.clear()
        super().on_message_complete()
        self._is_between = True
        self._framing_bytes = 0
        self._timeouts.waiting_since = None

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if self._head_bytes + len(getattr(self, "url", b"")) > MAX_FRAMING_BYTES:
            self._reject(head_too_large(MAX_FRAMING_BYTES))
        elif cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started):
            hint = "send HTTP/1.1 as in RFC 9112: one Content-Length or chunks, ASCII paths, no line folding"
            self._reject(bad_request("these bytes are not a valid HTTP request", hint))
        else:
            # nothing may be written into the middle of a response: it is completed, and is the last
            cycle.keep_alive = False
            self.flow.pause_reading()

    def close_after_response(self) -> None:
        """Make the response in progress the last one; if its head was sent, it has already promised to keep alive."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def close_if_idle(self) -> None:
        """Close the connection unless a request is in progress."""
        if self._is_between and self._is_idle():
            self.transport.close()

    def enforce_timeouts(self, now: float, seconds: float) -> None:
        """Close the connection if its client has kept the server waiting for longer than `seconds`."""
        if self.transport.is_closing():
            return
        delayed = self._timeouts.expired(
            now,
            seconds,
            reads_paused=self.flow.read_paused,
            num_unsent_bytes=self.transport.get_write_buffer_size() if self.flow.write_paused else 0,
        )
        if delayed is None:
            return
        cycle = self.cycle
        is_responding = cycle is not None and cycle.response_started and not cycle.response_complete
        if delayed == "request" and not is_responding:
            self._reject(request_timeout(seconds))
        else:
            self.transport.abort()  # an error cannot be written into the middle of a response
            self._middleware.count_rejection("request_timeout")

    def _reject(self, error: ApiError) -> None:
        """Send an error outside of any request, and close."""
        content = error.body()
        headers = {"content-type": "application/json", **error.headers, "connection": "close"}
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
        defaults = b"".join(b"%s: %s\r\n" % pair for pair in self.server_state.default_headers)
        head = b"%s%scontent-length: %d\r\n\r\n" % (defaults, lines.encode("latin-1"), len(content))
        self.transport.write(STATUS_LINE[error.status] + head + content)
        self.transport.close()
        self._framing_bytes = 0
        self._middleware.count_rejected_connection(error)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does so only if the connection ended without an error
        self._begun, self._num_missing, self._held, self._awaited = [], 0, [], None

    def timeout_keep_alive_handler(self) -> None:
        left = self._responded_at + self.timeout_keep_alive - self.loop.time()
        if self._num_missing:  # a request has begun: its own time limit counts
            left = self.timeout_keep_alive
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _is_idle(self) -> bool:
        """Return True if nothing is in progress, and written bytes go out: another request may begin."""
        cycle = self.cycle
        if cycle is not None and not (cycle.response_complete and cycle.keep_alive):
            return False
        if self.pipeline or self._awaited is not None or self._num_missing:
            return False
        return not self.flow.write_paused and not self.transport.is_closing()

    def _send(self, lines: str, content: bytes | memoryview) -> None:
        """Send a response of the fast path."""
        defaults = self.server_state.default_headers  # a new list every second, because of the date
        if self._default_headers[0] is not defaults:
            text = "".join(f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n" for name, value in defaults)
            self._default_headers = (defaults, STATUS_LINE[200].decode("latin-1") + text)
        head = f"{self._default_headers[1]}{lines}\r\n".encode("latin-1")
        self.transport.writelines([head, content])
        self.server_state.total_requests += 1
        self._timeouts.waiting_since = None
        self._responded_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
