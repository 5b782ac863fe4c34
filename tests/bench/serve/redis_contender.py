"""Redis with one row per key, and redis-benchmark: MGET of several keys over several connections."""

import csv
import io
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.bench.serve.http_load import LoadResult

CHUNK_ROWS = 10_000


def find_redis(venvs: Path) -> tuple[str, str] | None:
    """Return the paths of redis-server and redis-benchmark, of the system or in DIR/redis; None if not installed."""
    folders = [None, str(venvs / "redis/root/usr/bin")]
    for folder in folders:
        found = [shutil.which(name, path=folder) for name in ("redis-server", "redis-benchmark")]
        if all(found):
            return str(found[0]), str(found[1])
    return None


class Redis:
    """A server on a free port, without persistence."""

    def __init__(self, programs: tuple[str, str], *, on_core: list[str], load_core: list[str]) -> None:
        server, self._benchmark = programs
        self._folder = tempfile.TemporaryDirectory()
        self._load_core = load_core
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += ["--dir", self._folder.name]
        libraries = Path(server).parents[1] / "lib/x86_64-linux-gnu"
        self._environment = {"LD_LIBRARY_PATH": str(libraries)} if libraries.is_dir() else None
        self._process = subprocess.Popen([*on_core, server, *options], stdout=subprocess.DEVNULL, env=self._environment)
        self._connection = self._connect()

    @property
    def version(self) -> str:
        """Return the program's version."""
        self._connection.sendall(command(b"INFO", b"server"))
        text = self._reply().decode()
        return next(line.partition(":")[2] for line in text.splitlines() if line.startswith("redis_version"))

    def fill(self, rows_ND: npt.NDArray[np.float32]) -> None:
        """Set key "key:%012d" to the bytes of each row."""
        for start in range(0, len(rows_ND), CHUNK_ROWS):
            part = rows_ND[start : start + CHUNK_ROWS]
            commands = [command(b"SET", b"key:%012d" % (start + n), row.tobytes()) for n, row in enumerate(part)]
            self._connection.sendall(b"".join(commands))
            for _ in commands:
                assert self._line() == b"+OK"

    def rows(self, ids_K: npt.NDArray[np.int64], dim: int) -> npt.NDArray[np.float32]:
        """Return rows by MGET."""
        self._connection.sendall(command(b"MGET", *(b"key:%012d" % row_id for row_id in ids_K.tolist())))
        assert self._line() == b"*%d" % len(ids_K)
        return np.frombuffer(b"".join(self._reply() for _ in ids_K), "<f4").reshape(-1, dim)

    def measure(self, *, num_ids: int, num_rows: int, connections: int, requests: int) -> LoadResult:
        """Run redis-benchmark with random keys."""
        keys = ["key:__rand_int__"] * num_ids
        options = ["-p", str(self.port), "-c", str(connections), "-n", str(requests), "-r", str(num_rows), "--csv"]
        done = subprocess.run(
            [*self._load_core, self._benchmark, *options, "MGET", *keys],
            capture_output=True,
            text=True,
            check=True,
            env=self._environment,
        )
        (line,) = csv.DictReader(io.StringIO(done.stdout))
        return LoadResult(float(line["rps"]), float(line["p50_latency_ms"]), float(line["p99_latency_ms"]))

    def close(self) -> None:
        self._stream.close()
        self._connection.close()
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def _connect(self) -> socket.socket:
        for _ in range(200):
            try:
                connection = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                time.sleep(0.05)
                continue
            self._stream = connection.makefile("rb")
            return connection
        raise RuntimeError("redis-server does not respond")

    def _line(self) -> bytes:
        return self._stream.readline().removesuffix(b"\r\n")

    def _reply(self) -> bytes:
        head = self._line()
        assert head.startswith(b"$")
        return self._stream.read(int(head[1:]) + 2)[:-2]


def command(*words: bytes) -> bytes:
    """Return a command in Redis's protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
