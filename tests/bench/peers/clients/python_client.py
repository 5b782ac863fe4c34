"""One connection of a Python HTTP client: `python_client.py NAME URL BODIES BODY_BYTES SECONDS RESPONSES`.

BODIES is a file of request bodies of one length, asked in turn. The first eight responses go into the file RESPONSES;
then requests are sent for so long, and their number per second is printed. A response that is not 200 ends it.
"""

import asyncio
import importlib
import itertools
import re
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

KIND = {"content-type": "application/octet-stream"}
NUM_KEPT = 8


def ask_httpx(url: str) -> Callable[[bytes], bytes]:
    client = importlib.import_module("httpx").Client()
    return lambda body: client.post(url, content=body, headers=KIND).raise_for_status().content


def ask_requests(url: str) -> Callable[[bytes], bytes]:
    session = importlib.import_module("requests").Session()

    def ask(body: bytes) -> bytes:
        response = session.post(url, data=body, headers=KIND)
        response.raise_for_status()
        return response.content

    return ask


def ask_urllib3(url: str) -> Callable[[bytes], bytes]:
    pool = importlib.import_module("urllib3").PoolManager()

    def ask(body: bytes) -> bytes:
        response = pool.request("POST", url, body=body, headers=KIND)
        assert response.status == 200
        return response.data

    return ask


def ask_socket(url: str) -> Callable[[bytes], bytes]:
    """Return a client that does no more than one has to: one write, and reads until the response is whole."""
    parts = urllib.parse.urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {KIND['content-type']}\r\n"

    def ask(body: bytes) -> bytes:
        connection.sendall(f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        data = bytearray()
        while (start := data.find(b"\r\n\r\n") + 4) < 4:
            data += connection.recv(65_536)
        assert data.startswith(b"HTTP/1.1 200 ")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", data)
        assert length is not None
        while len(data) < start + int(length[1]):
            data += connection.recv(65_536)
        return bytes(data[start:])

    return ask


def rate(ask: Callable[[bytes], bytes], bodies: Iterator[bytes], seconds: float, kept: Path) -> float:
    kept.write_bytes(b"".join([ask(next(bodies)) for _ in range(NUM_KEPT)]))
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        ask(next(bodies))
        count += 1
    return count / spent


async def rate_of_aiohttp(url: str, bodies: Iterator[bytes], seconds: float, kept: Path) -> float:
    async with importlib.import_module("aiohttp").ClientSession() as session:

        async def ask() -> bytes:
            async with session.post(url, data=next(bodies), headers=KIND) as response:
                response.raise_for_status()
                return await response.read()

        kept.write_bytes(b"".join([await ask() for _ in range(NUM_KEPT)]))
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            await ask()
            count += 1
        return count / spent


if __name__ == "__main__":
    name, url, path, body_bytes, seconds, kept = sys.argv[1:]
    content, size = Path(path).read_bytes(), int(body_bytes)
    bodies = itertools.cycle([content[start : start + size] for start in range(0, len(content), size)])
    if name == "aiohttp":
        print(asyncio.run(rate_of_aiohttp(url, bodies, float(seconds), Path(kept))))
    else:
        ask = {"httpx": ask_httpx, "requests": ask_requests, "urllib3": ask_urllib3, "socket": ask_socket}[name]
        print(rate(ask(url), bodies, float(seconds), Path(kept)))
