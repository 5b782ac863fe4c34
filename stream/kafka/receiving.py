"""Receives the responses of one kafka-python client into the buffers that they are decoded from.

kafka-python reads 4 KiB at a time and then copies a response five times. Like raw_fetch.py this module uses private
names: `_build_transport` of a client's manager, `_sock_recv` and `_protocol` of a transport, `_receiving` and
`_rbuffer` of its parser. The version is pinned and a test checks for them; without them nothing changes but the speed.
"""

import ssl
from collections.abc import Callable
from typing import Any

from springtide.stream.kafka.library import kafka

HEAD_BYTES = 4096  # read at first: the length of a response, and all of a short one
Received = tuple[bytes, Exception | None]  # for the parser; why the connection is lost

WOULD_BLOCK = BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError


class ResponseBuffer(kafka.protocol.frame.KafkaBytes):  # type: ignore[misc]
    """A response that gives itself to be decoded, instead of two copies of itself."""

    _idx: int  # how much of it has been received, then read

    def read(self, nbytes: int | None = None) -> bytes | memoryview:
        if nbytes is not None:
            return bytes(super().read(nbytes))
        start, self._idx = self._idx, len(self)
        return memoryview(self)[start:]


def receive_in_place(client: Any) -> bool:
    """Let the connections that this client makes from now on receive in place.

    Returns False, and changes nothing, where kafka-python lacks a name. Only the instance is changed.
    """
    manager = getattr(client, "_manager", None)
    build = getattr(manager, "_build_transport", None)
    if manager is None or build is None:
        return False

    async def build_and_change(*arguments: Any, **options: Any) -> Any:
        transport = await build(*arguments, **options)
        if can_receive_in_place(transport):
            receive_all = transport._sock_recv
            transport._sock_recv = lambda: receive(transport, receive_all)
        return transport

    manager._build_transport = build_and_change
    return True


def can_receive_in_place(transport: Any) -> bool:
    """Return True if the transport has the private names that receive() needs, and its protocol will have them."""
    parser = kafka.protocol.parser.KafkaProtocol()
    return all(hasattr(transport, name) for name in ("_sock", "_sock_recv", "_protocol")) and all(
        hasattr(parser, name) for name in ("_receiving", "_rbuffer")
    )


def receive(transport: Any, receive_all: Callable[[], Received]) -> Received:
    """Receive what is there: the bytes of a response whose length is known into its buffer, all but its last byte.

    The parser decodes a response when it is given the last byte. Returns what the parser is to be given, and the error
    that ended the connection.
    """
    parser = getattr(transport._protocol, "parser", None)
    if parser is None or transport._sock is None:
        return receive_all()
    try:
        if parser._receiving and not fill(transport._sock, parser._rbuffer):
            return b"", kafka.errors.KafkaConnectionError("socket disconnected")
        if isinstance(transport, kafka.net.transport.KafkaSSLTransport):
            return receive_all()  # what TLS has decrypted already would wake no selector
        head = transport._sock.recv(HEAD_BYTES)
    except WOULD_BLOCK:
        return b"", None
    except OSError as error:
        return b"", kafka.errors.KafkaConnectionError(error)
    return head, None if head else kafka.errors.KafkaConnectionError("socket disconnected")


def fill(sock: Any, buffer: Any) -> bool:
    """Receive all but the last byte of a response; return False if the peer has closed the connection."""
    at, last = buffer.tell(), len(buffer) - 1
    buffer.__class__ = ResponseBuffer
    with memoryview(buffer) as view:
        while at < last:
            num_bytes = sock.recv_into(view[at:last])
            if num_bytes == 0:
                return False
            at += num_bytes
            buffer.seek(at)
    return True
