"""uvicorn's HTTP/1.1 connection with a short way for known look-ups: no task, no parser, one write."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.serving.http.errors import ApiError, bad_request, head_too_large, request_timeout, too_many_requests
from app.serving.http.fast_path import REQUEST_PREFIX
from app.serving.http.middleware import HttpMiddleware

MAX_FRAMING_BYTES = 65_536


class HttpConnection(HttpToolsProtocol):
    """Between two requests the bytes of a whole one may be answered at once; else everything is as ever."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._front = cast(HttpMiddleware, self.config.app)
        self._express, self._leaving = self._front.express, self._front.leaving
        self._is_head = False
        self._framing_bytes = self._body_bytes = self._head_bytes = 0  # of the message that the parser reads
        self._is_between = True  # the parser has seen the end of every request that began
        self._data: bytes | None = None  # that a request begins with
        self._answered_at = 0.0
        # slow clients: since when the rest of a request is waited for, and since when so many bytes do not go out
        self._waits_since: float | None = None
        self._stuck: tuple[int, float] | None = None
        self._own_headers: tuple[object, str] = (None, "")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        limit = self._front.config.max_connections
        if len(self.connections) > limit:
            self._refuse(too_many_requests("connections", limit))

    def data_received(self, data: bytes) -> None:
        if self._is_between and data.startswith(REQUEST_PREFIX) and not self._leaving.started and self._is_idle():
            answer = self._express.respond(data)
            if answer is not None:
                self._send(*answer)
                return
            self._data = data
        self._framing_bytes += len(data)
        super().data_received(data)
        self._data = None
        if not self._is_between and self._framing_bytes > MAX_FRAMING_BYTES + self._body_bytes:
            self._refuse(head_too_large(MAX_FRAMING_BYTES))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_between, self._is_head = False, True
        self._body_bytes = self._head_bytes = 0
        self._waits_since = self.loop.time()
        if self._data is not None:
            cast(dict[str, Any], self.scope)["springtide.data"] = self._data
            self._data = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_head:  # what comes after a body is no header of the request: it was let in by its head
            super().on_header(name, value)
            self._head_bytes += len(name) + len(value) + len(": \r\n")

    def on_headers_complete(self) -> None:
        if self._head_bytes + len(self.url) > MAX_FRAMING_BYTES:
            raise ValueError("the head is too long")  # the parser ends with it, and asks for send_400_response
        super().on_headers_complete()
        self._is_head = False
        if self._leaving.started:
            self.close_after_response()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        # a chunk of one byte has five around it: so much is no attack yet
        self._body_bytes += 8 * len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_between = True
        self._framing_bytes = 0
        self._waits_since = None

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if self._head_bytes + len(getattr(self, "url", b"")) > MAX_FRAMING_BYTES:
            self._refuse(head_too_large(MAX_FRAMING_BYTES))
        elif cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started):
            hint = "send HTTP/1.1 as RFC 9112 has it: one Content-Length or chunks, ASCII paths, no line folding"
            self._refuse(bad_request("these bytes are no HTTP request", hint))
        else:
            # nothing is put between the pieces of an answer: it is finished, and is the last
            cycle.keep_alive = False
            self.flow.pause_reading()

    def close_after_response(self) -> None:
        """The answer in the making, if any, is the last; one whose head is sent has promised to go on."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def close_if_idle(self) -> None:
        """Close, unless something was asked."""
        if self._is_between and self._is_idle():
            self.transport.close()

    def enforce_timeouts(self, now: float, seconds: float) -> None:
        """End the connection where its client has let the server wait for longer."""
        if self.transport.is_closing():
            return
        if self._waits_since is not None:
            if self.flow.read_paused:  # it is the server that does not read
                self._waits_since = now
            elif now - self._waits_since > seconds:
                cycle = self.cycle
                if cycle is not None and (cycle.response_started and not cycle.response_complete):
                    self.transport.abort()  # nothing can be said in the middle of an answer
                    self._front.count_rejection("too_slow")
                else:
                    self._refuse(request_timeout(seconds))
                return
        left = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        if left == 0:
            self._stuck = None
        elif self._stuck is None or self._stuck[0] != left:
            self._stuck = (left, now)
        elif now - self._stuck[1] > seconds:
            self.transport.abort()
            self._front.count_rejection("too_slow")

    def _refuse(self, refusal: ApiError) -> None:
        """Answer what no request can be answered to, and close."""
        content = refusal.body()
        texts = {"content-type": "application/json", **refusal.headers, "connection": "close"}
        lines = "".join(f"{name.lower()}: {text}\r\n" for name, text in texts.items())
        own = b"".join(b"%s: %s\r\n" % pair for pair in self.server_state.default_headers)
        head = b"%s%scontent-length: %d\r\n\r\n" % (own, lines.encode("latin-1"), len(content))
        self.transport.write(STATUS_LINE[refusal.status] + head + content)
        self.transport.close()
        self._framing_bytes = 0
        self._front.count_rejected_connection(refusal)

    def timeout_keep_alive_handler(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _is_idle(self) -> bool:
        """Nothing is in flight, and what is written leaves; whoever asks again may."""
        cycle = self.cycle
        if cycle is not None and not (cycle.response_complete and cycle.keep_alive):
            return False
        return not self.pipeline and not self.flow.write_paused and not self.transport.is_closing()

    def _send(self, lines: str, content: bytes | memoryview) -> None:
        own = self.server_state.default_headers  # another list every second: the date
        if self._own_headers[0] is not own:
            text = "".join(f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n" for name, value in own)
            self._own_headers = (own, STATUS_LINE[200].decode("latin-1") + text)
        head = f"{self._own_headers[1]}{lines}\r\n".encode("latin-1")
        self.transport.writelines([head, content])
        self.server_state.total_requests += 1
        self._waits_since = None
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
