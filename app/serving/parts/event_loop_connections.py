"""The event loop's connections to the servers of parts: a few to each, opened when they are first needed.

What a request is and what a response means, PartServers says, for threads and for the event loop.
"""

import asyncio
import time
import urllib.parse
from collections.abc import Callable
from typing import cast

import numpy as np

from springtide_client.array_types import UInt8Array
from springtide_client.parts.part_servers import PAUSE_SECONDS, PartServers, ResponseError, ResponseHead

MAX_HEAD_BYTES = 4_096

# the status of a response and its body, which is valid until the next exchange; None: none has come
OnResponse = Callable[[tuple[int, UInt8Array] | None], None]


class EventLoopConnection(asyncio.BufferedProtocol):
    """One HTTP/1.1 connection, for one exchange at a time. For the event loop's thread alone.

    A response is read into one buffer, and given out as a view of it.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._num_read = self._body_start = self._end = 0
        self._head = ResponseHead(0, 0, closes=True)
        self._on_response: OnResponse | None = None
        self.is_idle = False  # connected, and free for an exchange

    def ask(self, request: bytes, num_bytes: int, on_response: OnResponse) -> None:
        """Send a request whose response should have a body of `num_bytes`; only where the connection is idle."""
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
        body = np.frombuffer(self._buffer, np.uint8, self._end - self._body_start, self._body_start)
        assert self._transport is not None
        if self._head.closes:
            self._transport.abort()
        self._end_exchange((self._head.status, body))

    def _read_head(self) -> bool:
        """Find the end of the head, once it is there; False if the bytes are no response that fits."""
        if not self._body_start:
            end = self._buffer.find(b"\r\n\r\n", 0, self._num_read)
            if end < 0:
                return self._num_read < MAX_HEAD_BYTES
            try:
                self._head = ResponseHead.of(bytes(self._buffer[: end + 2]))
            except ResponseError:
                return False
            self._body_start, self._end = end + 4, end + 4 + self._head.body_bytes
        return self._num_read <= self._end <= len(self._buffer)

    def _end_exchange(self, response: tuple[int, UInt8Array] | None) -> None:
        on_response, self._on_response = self._on_response, None
        self.is_idle = self._transport is not None and not self._transport.is_closing()
        if on_response is not None:
            on_response(response)


class EventLoopConnections:
    """For the event loop's thread alone."""

    def __init__(self, servers: PartServers, num_connections: int) -> None:
        """Open at most `num_connections` to one server."""
        self._servers, self._num_connections = servers, num_connections
        self._connections: list[list[EventLoopConnection]] = [[] for _ in servers.urls]
        self._late_until = [0.0] * len(servers)
        self._connecting: set[asyncio.Task[None]] = set()

    def idle(self, index: int) -> EventLoopConnection | None:
        """Return a connection to a part; None where there is none now. Then some are opened for later calls."""
        connections = self._connections[index]
        for connection in connections:
            if connection.is_idle:
                return connection
        self._connections[index] = [connection for connection in connections if not connection.is_closed]
        if time.monotonic() >= self._late_until[index] and not self._servers.reason_of_pause(index):
            for _ in range(self._num_connections - len(self._connections[index])):
                self._open(index)
        return None

    def pause(self, index: int) -> None:
        """Open none to a part for a moment: it is too late for the event loop, if not for the threads' way."""
        self._late_until[index] = time.monotonic() + PAUSE_SECONDS

    def close(self) -> None:
        """Close them all. Exchanges in progress have no response."""
        for task in self._connecting:
            task.cancel()
        for connections in self._connections:
            for connection in connections:
                connection.close()

    def _open(self, index: int) -> None:
        connection = EventLoopConnection()
        self._connections[index].append(connection)
        task = asyncio.get_running_loop().create_task(self._connect(index, connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, index: int, connection: EventLoopConnection) -> None:
        url, loop = urllib.parse.urlsplit(self._servers.urls[index]), asyncio.get_running_loop()
        assert url.hostname is not None
        try:
            connecting = loop.create_connection(lambda: connection, url.hostname, url.port or 80)
            await asyncio.wait_for(connecting, self._servers.timeout_seconds)
        except OSError:  # the threads' way finds the same, and says it
            self.pause(index)
            self._connections[index] = [other for other in self._connections[index] if other is not connection]
