"""The longest look-up in a HotModel or a server, while one process writes versions and another compacts."""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from springtide.app.config.load import load_config
from springtide.app.processes.tuning import yield_to_others
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.write.writer import LogWriter
from springtide_client import HotModel
from springtide_client.array_types import Float32Array, UInt8Array
from springtide_client.format.records import VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.keys import hash_keys
from springtide_client.log.directory import LogDirectory
from tests.bench.harness.report import fail
from tests.bench.harness.thread_times import ProcessorWait
from tests.bench.serve.contenders import PATH, RAW, Server, body_of, server_command
from tests.bench.serve.http_load import post
from tests.bench.workloads.row_log import DIM, FEATURE, values_of, write_log
from tests.support.processes import module_command, our_environment

VERSION_SECONDS, VERSIONS_A_BASE = 0.05, 20
CALL_IDS = 64


class Rows(Protocol):
    """What is asked while versions are swapped in it."""

    @property
    def version(self) -> int:
        """The newest version that was seen."""

    @property
    def waited_seconds(self) -> float:
        """How long the threads that answer have been ready to run while others had the processors."""

    def lookup(self, feature: str, ids: npt.NDArray[np.int64]) -> tuple[Float32Array, UInt8Array]:
        """Return the rows and their status."""

    def close(self) -> None:
        """End following."""


class ModelRows(HotModel):
    """A HotModel, for calls of this thread."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self._own_wait = ProcessorWait()

    @property
    def waited_seconds(self) -> float:
        return self._own_wait.seconds


class ServedRows:
    """A server of our own, asked over one connection."""

    def __init__(self, log: Path) -> None:
        self._server = Server(server_command(log, {}), our_environment(), is_pinned=False)
        self._server.ask(PATH, body_of("raw", np.zeros(1, np.int64)), RAW)  # wait for the first version
        self._connection = socket.create_connection(("127.0.0.1", self._server.port), timeout=60)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waits = ProcessorWait(), ProcessorWait(self._server.pid)
        self.version = 0

    @property
    def waited_seconds(self) -> float:
        return sum(wait.seconds for wait in self._waits)

    def lookup(self, feature: str, ids: npt.NDArray[np.int64]) -> tuple[Float32Array, UInt8Array]:
        self._connection.sendall(post(PATH, body_of("raw", ids), RAW))
        num_bytes, answer = len(ids) * (4 * DIM + 1), b""
        while (start := answer.find(b"\r\n\r\n") + 4) < 4 or len(answer) < start + num_bytes:
            answer += self._connection.recv(1 << 16)
        head, body = answer[:start].lower(), answer[start:]
        self.version = int(head.partition(b"x-springtide-version:")[2].split(b"\r\n")[0])
        rows_KD = np.frombuffer(body, "<f4", len(ids) * DIM).reshape(len(ids), DIM)
        return rows_KD, np.frombuffer(body[rows_KD.nbytes :], np.uint8)

    def close(self) -> None:
        self._connection.close()
        self._server.close()


class Latencies(NamedTuple):
    """The look-ups of one run, in seconds."""

    p99: float
    longest: float
    # without the time that a thread was ready to run while others had the processors: what the swaps themselves cost
    longest_on_processor: float


class Swaps:
    """Rows of a log of `num_rows` rows; each version changes a hundredth of them."""

    def __init__(self, folder: Path, num_rows: int, open_rows: Callable[[Path], Rows]) -> None:
        folder.mkdir()
        self.folder, self.num_rows = folder, num_rows
        self.num_swaps = self.num_bases = 0
        self.latencies: dict[bool, list[Latencies]] = {True: [], False: []}  # of each run, by `moving`
        write_log(folder, num_rows)
        command = [*module_command("tests.bench.snapshot.swap_latency"), "write", str(folder), str(num_rows)]
        pipe = subprocess.PIPE
        self._writer = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=our_environment())
        self._wait_for_writer()  # wait for the writer's epoch
        self.rows = open_rows(folder / "log")

    def __enter__(self) -> "Swaps":
        return self

    def __exit__(self, *_: object) -> None:
        self.rows.close()
        assert self._writer.stdin is not None
        self._writer.stdin.close()
        self._writer.wait()

    def run(self, seconds: float, *, moving: bool) -> float:
        """Return 1 / the longest look-up in `seconds`; fails if a row belongs to no version."""
        assert self._writer.stdin is not None
        assert self._writer.stdout is not None
        if moving:
            self._writer.stdin.write(f"{seconds}\n")
            self._writer.stdin.flush()
        random = np.random.default_rng(0)
        ids = [random.integers(0, self.num_rows, CALL_IDS) for _ in range(64)]
        expected = [values_of(ids_K) for ids_K in ids]
        took, on_processor = [], []
        version, num_swaps, number = self.rows.version, 0, 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            waited = self.rows.waited_seconds
            start = time.perf_counter()
            rows_KD, status_K = self.rows.lookup(FEATURE, ids[number % 64])
            took.append(time.perf_counter() - start)
            on_processor.append(took[-1] - (self.rows.waited_seconds - waited))
            # every version adds one whole number to all elements of a row
            added_KD = rows_KD - expected[number % 64]
            if status_K.any() or np.abs(added_KD - added_KD[:, :1]).max() > 1e-3:
                fail("a row that belongs to no version")
            num_swaps += self.rows.version != version
            version, number = self.rows.version, number + 1
        if moving:
            told = json.loads(self._writer.stdout.readline())
            self.num_swaps, self.num_bases = self.num_swaps + num_swaps, self.num_bases + told["bases"]
            if not num_swaps:
                fail("no version arrived during the lookups")
        latencies = Latencies(float(np.percentile(took, 99)), max(took), max(on_processor))
        self.latencies[moving].append(latencies)
        return 1 / latencies.longest

    def _wait_for_writer(self) -> None:
        """Wait for the writer's first line."""
        assert self._writer.stdout is not None
        ready, _, _ = select.select([self._writer.stdout], [], [], 60.0)
        if not ready or "ready" not in self._writer.stdout.readline():
            fail("the writer of versions does not start")


def write() -> None:
    """Run the writer process: for each number of seconds on standard input, append versions and request bases."""
    folder, num_rows = Path(sys.argv[2]), int(sys.argv[3])
    config = load_config(folder / "springtide.toml")
    random, number = np.random.default_rng(5), 0
    feature = config.schema.number(FEATURE)
    # drawn before, so that this process takes little from the processors while calls are timed
    versions = [draw(random, num_rows, feature, added) for added in range(8)]
    command = [*module_command("tests.bench.snapshot.swap_latency"), "compact", str(folder)]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as compactor,
        LogWriter.open(config.log, schema=config.schema) as log,
    ):
        assert compactor.stdin is not None
        assert compactor.stdout is not None
        mark = config.schema.fingerprint()
        log.append(VersionMeta(fingerprint=mark), {})
        print("ready", flush=True)
        for line in sys.stdin:
            end, asked = time.monotonic() + float(line) * 0.9, 0
            while time.monotonic() < end:
                number += 1
                log.append_owned(
                    VersionMeta(samples_trained=number, fingerprint=mark), versions[number % len(versions)]
                )
                if number % VERSIONS_A_BASE == 0:
                    log.sync()
                    print("compact", file=compactor.stdin, flush=True)
                    asked += 1
                time.sleep(VERSION_SECONDS)
            print(json.dumps({"bases": sum(int(compactor.stdout.readline()) for _ in range(asked))}), flush=True)
        compactor.stdin.close()


def draw(random: np.random.Generator, num_rows: int, feature: int, added: int) -> Arrays:
    """Return the tensors of a version that changes a hundredth of the rows, sorted as a trainer sorts them."""
    count = max(1, num_rows // 100)
    ids_M = random.choice(num_rows, count, replace=False)
    features_M = np.full(count, feature, np.uint16)
    ids_M = ids_M[np.argsort(hash_keys(features_M, ids_M))]
    return {
        "rows.feature": features_M,
        "rows.id": ids_M,
        "rows.value": values_of(ids_M, DIM) + np.float32(added),
        "rows.state": np.zeros((count, 1), np.float32),
        "rows.count": np.ones(count, np.int64),
        "rows.last_seen": np.full(count, 1000),
    }


def compact() -> None:
    """Run the compactor process at low priority: write a base for each line on standard input."""
    directory = LogDirectory(Path(sys.argv[2]) / "log")
    yield_to_others()
    for _ in sys.stdin:
        print(int(compact_log(directory, window_samples=100) is not None), flush=True)


if __name__ == "__main__":
    {"write": write, "compact": compact}[sys.argv[1]]()
