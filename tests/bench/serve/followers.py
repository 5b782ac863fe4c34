"""serve.followers: many followers of one log, by HotModel's protocol, against the real server: bytes and CPU of each.

Each follower requests the newest base and version, then reads /v1/log and checks the chain of parents. What a HotModel
does with the frames happens on its own machine, and is not simulated.
"""

import asyncio
import http.client
import json
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from springtide_client.format.records import HEADER, parse_header
from tests.bench.freshness.freshness import percentile
from tests.bench.harness.report import Case, argument_parser, fail, report
from tests.bench.harness.thread_times import processor_seconds
from tests.bench.serve.contenders import Server, server_command
from tests.bench.serve.growing_log import growing_log
from tests.bench.workloads.row_log import write_log
from tests.support.processes import our_environment

PUBLISH_SECONDS, NUM_ROWS, BASE_ROWS = 0.5, 200, 20_000
NUM_FOLLOWERS, NUM_STREAMS = 1_000, 4_096


@dataclass
class Follower:
    """One stream of the log."""

    arrived: dict[int, int] = field(default_factory=dict)  # version -> monotonic ns
    num_bytes: int = 0
    head: int = 0

    async def run(self, port: int, ready: asyncio.Semaphore) -> None:
        async with ready:
            base = await ask(port, "/v1/bases/latest")
            await ask(port, "/v1/versions/latest")
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            writer.write(f"GET /v1/log?after={base['number']} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            response_head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in response_head.split(b"\r\n")[0]:
            fail(f"/v1/log: {response_head[:200]!r}")
        body = Body(reader)
        with closing(writer):
            while True:
                header = parse_header(await body.read(HEADER.size))
                await body.read(header.length)
                if self.head and header.parent != self.head:
                    fail("a version does not follow the one before")
                self.head = header.checksum
                self.arrived[header.number] = time.monotonic_ns()
                self.num_bytes += HEADER.size + header.length


class Body:
    """A chunked body, read by bytes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._left = reader, b""

    async def read(self, size: int) -> bytes:
        pieces, have = [self._left], len(self._left)
        while have < size:
            length = int(await self._reader.readline(), 16)
            piece = (await self._reader.readexactly(length + 2))[:-2]
            pieces.append(piece)
            have += length
        whole = b"".join(pieces)
        self._left = whole[size:]
        return whole[:size]


async def ask(port: int, path: str) -> dict[str, int]:
    """Return a route's JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        response_head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    if b" 200 " not in response_head.split(b"\r\n")[0]:
        fail(f"{path}: {response_head[:200]!r}")
    document: dict[str, int] = json.loads(body)
    return document


@dataclass
class Reading:
    """The cost of a number of followers, over some seconds."""

    num_followers: int
    server_cpu: float  # cores
    bytes_a_second: float  # of one follower
    delays_ms: list[float]


async def measure(port: int, process: int, num: int, seconds: float, appended: dict[int, int]) -> Reading:
    followers, ready = [Follower() for _ in range(num)], asyncio.Semaphore(32)
    tasks = [asyncio.create_task(follower.run(port, ready)) for follower in followers]
    deadline = time.monotonic() + 180
    while any(max(follower.arrived, default=0) < max(appended, default=1) for follower in followers):
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            fail("the followers did not all have the newest version within 180 s")
        await asyncio.sleep(0.1)
    await asyncio.sleep(2 * PUBLISH_SECONDS)
    begun, used = time.monotonic(), processor_seconds(process)
    received = sum(follower.num_bytes for follower in followers)
    await asyncio.sleep(seconds)
    elapsed, used = time.monotonic() - begun, processor_seconds(process) - used
    received = sum(follower.num_bytes for follower in followers) - received
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    delays = [
        (at - appended[number]) / 1e6
        for follower in followers
        for number, at in follower.arrived.items()
        if number in appended and at / 1e9 > begun
    ]
    return Reading(num, used / elapsed, received / max(1, num) / elapsed, delays)


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        if time.monotonic() > deadline:
            fail("the server was not ready within 60 s")
        time.sleep(0.1)


async def run(
    port: int, process: int, log: "subprocess.Popen[str]", counts: list[int], seconds: float
) -> list[Reading]:
    """Measure each number of followers."""
    appended: dict[int, int] = {}

    def note() -> None:
        assert log.stdout is not None
        for line in log.stdout:
            number, _, at = map(int, line.split())
            appended[number] = at

    noting = asyncio.create_task(asyncio.to_thread(note))
    try:
        return [await measure(port, process, num, seconds, appended) for num in counts]
    finally:
        log.send_signal(signal.SIGKILL)
        await noting


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--followers", type=int, default=NUM_FOLLOWERS)
    options = parser.parse_args()
    num, seconds = (50, 3.0) if options.quick else (options.followers, 10.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = write_log(folder, BASE_ROWS, layers=[64])
        log = stack.enter_context(growing_log(folder, PUBLISH_SECONDS, NUM_ROWS, stdout=subprocess.PIPE))
        server = Server(server_command(path, {"max_streams": NUM_STREAMS}), our_environment())
        stack.callback(server.close)
        wait_until_ready(server.port)
        readings = asyncio.run(run(server.port, server.pid, log, [0, 1, num // 10, num], seconds))
    idle, one, _, all_of_them = readings
    share = (all_of_them.server_cpu - idle.server_cpu) / num
    core = Case(
        "followers that one core keeps", "followers", [1 / share], {"a thousand": [1000.0]}, needed=1.0, contest=False
    )
    report("serve.followers", [core], options, packages=("uvicorn", "uvloop"))
    print(f"a version of {one.bytes_a_second * PUBLISH_SECONDS / 1e3:,.0f} kB every {PUBLISH_SECONDS:g} s")
    for reading in readings:
        delays, each = reading.delays_ms or [0.0], reading.bytes_a_second
        print(
            f"{reading.num_followers:5} followers: server {100 * reading.server_cpu:5.1f} % of a core; each "
            f"{each / 1e3:,.0f} kB/s, all {reading.num_followers * each / 1e6:,.0f} MB/s; "
            f"a version seen after p50 {median(delays):.0f} ms, p99 {percentile(delays, 0.99):.0f} ms"
        )
    print(f"a follower costs the server {1e6 * share:,.0f} µs of CPU a second")
