"""One HTTP/1.1 connection of the event loop to the server of a part, for one exchange at a time.

The response is read into one buffer, and given out as views of it.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import numpy as np

from springtide_client.array_types import UInt8Array
from springtide_client.parts.part_connection import CLOSES, CONTENT_LENGTH, STATUS_LINE

MAX_HEAD_BYTES = 4_096

# the status of a response and its body, which is valid until the next exchange; None: none has come
OnResponse = Callable[[tuple[int, UInt8Array] | None], None]


class PartChannel(asyncio.BufferedProtocol):
    """For the event loop's thread alone."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._num_read = self._body_start = self._end = 0
        self._on_response: OnResponse | None = None
        self.is_idle = False  # connected, and free for an exchange

    def ask(self, request: bytes, num_bytes: int, on_response: OnResponse) -> None:
        """Send a request whose response should have a body of `num_bytes`; only where the channel is idle."""
        assert self._transport is not None
        if len(self._buffer) < num_bytes + MAX_HEAD_BYTES:
            self._buffer = bytearray(num_bytes + MAX_HEAD_BYTES)
        self._num_read = self._body_start = 0
        self._on_response, self.is_idle = on_response, False
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection; an exchange in progress has no response."""
        if self._transport is not None:
            self._transport.abort()
        self._end_exchange(None)

    @property
    def is_closed(self) -> bool:
        """True once it can take no further exchange."""
        return self._transport is not None and self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_idle = cast(asyncio.Transport, transport), True

    def connection_lost(self, error: Exception | None) -> None:
        self._end_exchange(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._num_read :]

    def buffer_updated(self, num_bytes: int) -> None:
        self._num_read += num_bytes
        if self._on_response is None or not self._read_head():
            self.close()  # bytes that answer no request, or are not HTTP
            return
        if not self._body_start or self._num_read < self._end:
            return
        head = bytes(self._buffer[: self._body_start])
        status = STATUS_LINE.match(head)
        assert status is not None
        body = np.frombuffer(self._buffer, np.uint8, self._end - self._body_start, self._body_start)
        assert self._transport is not None
        if CLOSES.search(head) is not None:
            self._transport.abort()
        self._end_exchange((int(status[1]), body))

    def _read_head(self) -> bool:
        """Find the end of the head, once it is there; False if the bytes are no response that fits."""
        if not self._body_start:
            end = self._buffer.find(b"\r\n\r\n", 0, self._num_read)
            if end < 0:
                return self._num_read < MAX_HEAD_BYTES
            head = bytes(self._buffer[: end + 2])
            length = CONTENT_LENGTH.search(head)
            if length is None or STATUS_LINE.match(head) is None:
                return False
            self._body_start, self._end = end + 4, end + 4 + int(length[1])
        return self._num_read <= self._end <= len(self._buffer)

    def _end_exchange(self, response: tuple[int, UInt8Array] | None) -> None:
        on_response, self._on_response = self._on_response, None
        self.is_idle = self._transport is not None and not self._transport.is_closing()
        if on_response is not None:
            on_response(response)
