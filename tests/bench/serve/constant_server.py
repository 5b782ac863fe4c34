"""A server that waits for a request's last byte and writes so many constant ones: what a client can reach at most."""

import asyncio
import re
import sys

import uvloop

LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class ConstantConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, num_bytes: int) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {num_bytes}\r\n\r\n"
        self._response = head.encode() + bytes(num_bytes)
        self._data = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        body_start = self._data.find(b"\r\n\r\n") + 4
        length = LENGTH.search(self._data, 0, body_start)
        if length is not None and len(self._data) >= body_start + int(length[1]):
            self._data = b""
            self._transport.write(self._response)


async def main(num_bytes: int) -> None:
    """Serve until killed; prints the port."""
    server = await asyncio.get_running_loop().create_server(lambda: ConstantConnection(num_bytes), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
