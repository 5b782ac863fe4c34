"""Servers of lookups on this machine: started, filled with the same rows, and checked bitwise."""

# N rows, K ids of a request
import http.client
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow

from springtide_client.keys import hash_keys
from springtide_client.rows.hash_range import owners_of
from tests.bench.harness.processes import PEER_SCRIPTS
from tests.bench.harness.report import fail
from tests.bench.serve.http_load import LoadResult, Wrk, post
from tests.bench.serve.redis_contender import Redis, find_redis
from tests.bench.workloads.row_log import DIM, FEATURE, values_of, write_log
from tests.support.ports import free_port
from tests.support.processes import module_command, our_environment

NUM_IDS, CONNECTIONS, NUM_REQUESTS, NUM_CHECKED = 64, 16, 256, 8
RAW, MSGPACK, JSON = "application/octet-stream", "application/msgpack", "application/json"
ARROW = "application/vnd.apache.arrow.stream"
FORMS = {"raw": RAW, "msgpack": MSGPACK, "arrow": ARROW, "json": JSON}
PATH = f"/v1/embeddings/{FEATURE}"

Ids = npt.NDArray[np.int64]


def body_of(form: str, ids_K: Ids) -> bytes:
    """Return the body of a request for these ids."""
    if form == "raw":
        return ids_K.astype("<i8").tobytes()
    if form == "arrow":
        sink = io.BytesIO()
        table = pyarrow.table({"id": ids_K})
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
    encode = msgspec.msgpack.encode if form == "msgpack" else msgspec.json.encode
    return encode({"ids": ids_K.tolist()})


def rows_of(form: str, answer: bytes) -> npt.NDArray[np.float32]:
    """Return the rows of a response."""
    if form == "raw":
        return np.frombuffer(answer[: NUM_IDS * DIM * 4], "<f4").reshape(NUM_IDS, DIM)
    if form == "arrow":
        vectors = pyarrow.ipc.open_stream(answer).read_all().column("vector").to_pylist()
        return np.array(vectors, np.float32)
    if form == "msgpack":
        return np.frombuffer(msgspec.msgpack.decode(answer)["vectors"], "<f4").reshape(NUM_IDS, DIM)
    return np.array(json.loads(answer)["vectors"], np.float32)


def core(number: int) -> list[str]:
    """Return the command prefix that pins a process to one core; empty with a single core."""
    return ["taskset", "-c", str(number)] if (os.cpu_count() or 1) > 1 and shutil.which("taskset") else []


@cache
def highest_priority() -> list[str]:
    """Return the command prefix for the highest niceness; empty where that is not allowed.

    Not real-time priority: Linux reserves 50 ms of each second for other processes.
    """
    words = ["nice", "-n", "-20"]
    if shutil.which("nice") is None or subprocess.run([*words, "true"], capture_output=True, check=False).stderr:
        return []
    return words


def server_command(log: Path, settings: Mapping[str, object]) -> list[str]:
    """Return the command of our server over a log; `settings`: of `ServeConfig`."""
    return module_command("tests.bench.serve.server_process", str(log), json.dumps(settings))


class Server:
    """A process that prints its port."""

    def __init__(self, command: list[str], environment: dict[str, str], *, is_pinned: bool = True) -> None:
        """`is_pinned`: to the first core."""
        command = [*core(0), *command] if is_pinned else command
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, path: str, body: bytes, media_type: str) -> bytes:
        """Send one request and return the response; retries 503 while the server has no version."""
        deadline = time.monotonic() + 120
        while (answer := self._answer(path, body, media_type))[0] == 503 and time.monotonic() < deadline:
            time.sleep(0.1)
        status, content = answer
        if status != 200:
            fail(f"{path} answers {status}: {content[:200]!r}")
        return content

    def _answer(self, path: str, body: bytes, media_type: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", path, body, {"Content-Type": media_type})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class OtherWork:
    """A process on the other core; stopped except within `beside`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        # the load generator is not part of the comparison, so it has a higher priority than this
        command = ["nice", "-n", "19", *core(1), *command]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        self.wait_until_ready()
        self._process.send_signal(signal.SIGSTOP)
        self.seconds = 0.0

    def wait_until_ready(self) -> None:
        """Return once it works."""

    def beside(self, work: Callable[[], LoadResult]) -> LoadResult:
        """Return the result of `work`, with the trainer running meanwhile."""
        start = time.monotonic()
        self._process.send_signal(signal.SIGCONT)
        try:
            return work()
        finally:
            self._process.send_signal(signal.SIGSTOP)
            self.seconds += time.monotonic() - start

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Trainer(OtherWork):
    """A trainer that learns and publishes."""

    def __init__(self, config: Path, num_rows: int, environment: dict[str, str]) -> None:
        command = [*module_command("tests.bench.serve.trainer_process"), str(config), str(num_rows)]
        super().__init__(command, environment)

    def wait_until_ready(self) -> None:
        """Return once it has published a version."""
        assert self._process.stdout is not None
        self._learned = [int(self._process.stdout.readline())]
        os.set_blocking(self._process.stdout.fileno(), False)

    def per_second(self) -> float:
        """Return the samples learned per second while it ran."""
        assert self._process.stdout is not None
        lines = (self._process.stdout.read() or b"").split()
        self._learned += [int(line) for line in lines]
        return (self._learned[-1] - self._learned[0]) / self.seconds


def check(name: str, found: npt.NDArray[np.float32], ids_K: Ids) -> None:
    """Check rows bitwise, also those that were sent as decimal digits."""
    if not np.array_equal(found.view(np.uint32), values_of(ids_K).view(np.uint32)):
        fail(f"the rows of {name}")


class LookupContenders:
    """All servers with the same rows. `runs`: the function to repeat, by name."""

    def __init__(self, folder: Path, num_rows: int, seconds: float, stack: ExitStack) -> None:
        self.folder, self.num_rows, self.seconds, self._stack = folder, num_rows, seconds, stack
        self.environment = our_environment()
        self.wrk = Wrk(folder, connections=CONNECTIONS, on_core=[*core(1), *highest_priority()])
        self.versions = {"wrk": self.wrk.version}
        self.runs: dict[str, Callable[[], LoadResult]] = {}
        self.pids: dict[str, int] = {}  # of the server of each of our runs
        random = np.random.default_rng(0)
        self.asked = [random.integers(0, num_rows, NUM_IDS) for _ in range(NUM_REQUESTS)]

    def add_ours(self) -> None:
        """Add our server in every format."""
        log = write_log(self.folder, self.num_rows)
        server = self.start(server_command(log, {}))
        for form in FORMS:
            self.add(form, server, PATH, form)
            self.pids[form] = server.pid

    def add_parts(self, log: Path, count: int) -> dict[str, Server]:
        """Add a server that holds everything, servers of so many parts asked for their own rows, and a router."""
        ports = [free_port() for _ in range(count)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        settings: dict[str, dict[str, object]] = {"whole": {}}
        settings |= {f"part {n}": {"port": port, "range": f"{n}/{count}"} for n, port in enumerate(ports, 1)}
        settings["router"] = {"parts": urls}
        servers = {name: self.start(server_command(log, given)) for name, given in settings.items()}
        for server in list(servers.values())[1:-1]:  # the router's first request asks them all
            server.ask("/v1/embeddings/user_id", b"", RAW)
        for name in ("whole", "router"):
            self.add(name, servers[name], PATH, "raw")
        asked, self.asked = self.asked, self._owned(count)
        self.add("part 1", servers["part 1"], PATH, "raw")
        self.asked = asked
        for name in self.runs:
            self.pids[name] = servers[name].pid
        return servers

    def _owned(self, count: int) -> list[Ids]:
        """Return as many ids for each request as in `asked`, all of the first part."""
        random, feature = np.random.default_rng(1), np.array([1], np.uint16)
        ids_N = random.integers(0, self.num_rows, 2 * count * NUM_REQUESTS * NUM_IDS)
        own_N = ids_N[owners_of(hash_keys(feature, ids_N), count) == 0]
        return list(own_N[: NUM_REQUESTS * NUM_IDS].reshape(NUM_REQUESTS, NUM_IDS))

    def add_web(self, python: Path) -> None:
        """Add FastAPI twice, and an empty response by the same uvicorn."""
        if not python.exists():
            self.versions |= {"FastAPI": "missing", "FastAPI + orjson": "missing"}
            return
        np.save(self.folder / "rows.npy", values_of(np.arange(self.num_rows)))
        script = str(PEER_SCRIPTS / "web_peer.py")
        server = self.start([str(python), script, str(self.folder / "rows.npy")])
        self.add("FastAPI", server, "/default", "json")
        self.add("FastAPI + orjson", server, "/orjson", "json")
        self.add("empty response", server, "/empty", "raw", is_checked=False)
        lines = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
        known = dict(line.split("==") for line in lines.split() if "==" in line)
        names = ("fastapi", "uvicorn", "orjson", "uvloop", "httptools")
        self.versions |= {f"peer {name}": known[name] for name in names}

    def add_redis(self, venvs: Path) -> None:
        """Add Redis, with the bytes of a row per key."""
        programs = find_redis(venvs)
        if programs is None:
            self.versions["redis-server"] = "missing"
            return
        redis = Redis(programs, on_core=[*core(0), *highest_priority()], load_core=[*core(1), *highest_priority()])
        self._stack.callback(redis.close)
        redis.fill(values_of(np.arange(self.num_rows)))
        for ids_K in self.asked[:NUM_CHECKED]:
            check("Redis", redis.rows(ids_K, DIM), ids_K)
        self.versions["redis-server"] = redis.version
        size = {"num_ids": NUM_IDS, "num_rows": self.num_rows, "connections": CONNECTIONS}
        self.runs["Redis MGET"] = partial(redis.measure, **size, requests=int(self.seconds * 20_000))

    def add_computing(self, *forms: str) -> None:
        """Add our server beside a process that only computes: what sharing the other core costs, whoever takes it."""
        work = OtherWork([sys.executable, "-c", "while True: pass"], self.environment)
        self._stack.callback(work.close)
        for form in forms:
            self.runs[f"{form}, computing"] = partial(work.beside, self.runs[form])

    def add_training(self, *forms: str) -> Trainer:
        """Add our server with a trainer that learns and publishes."""
        trainer = Trainer(self.folder / "springtide.toml", self.num_rows, self.environment)
        self._stack.callback(trainer.close)
        for form in forms:
            self.runs[f"{form}, training"] = partial(trainer.beside, self.runs[form])
            self.pids[f"{form}, training"] = self.pids[form]
        return trainer

    def start(self, command: list[str]) -> Server:
        """Start a server that ends with the benchmark."""
        server = Server([*highest_priority(), *command], self.environment)
        self._stack.callback(server.close)
        return server

    def add(self, name: str, server: Server, path: str, form: str, *, is_checked: bool = True) -> None:
        """Check a server's rows, and add its run."""
        bodies = [body_of(form, ids_K) for ids_K in self.asked]
        if is_checked:
            for ids_K, body in zip(self.asked[:NUM_CHECKED], bodies, strict=False):
                check(name, rows_of(form, server.ask(path, body, FORMS[form])), ids_K)
        requests = self.wrk.save(name, [post(path, body, FORMS[form]) for body in bodies])
        self.runs[name] = partial(self.wrk.measure, server.port, requests, self.seconds)
